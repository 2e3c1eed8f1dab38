"""Reads the store once a second for all viewers of this process, and renders each panel of the console once for all."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from flask import current_app

from shared.accounts.groups import Groups
from shared.accounts.routes import Routes
from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.log import LimitedEvent
from shared.store.preflight import find_write_fault
from shared.store.replies import Snapshot
from shared.store.store import Store
from shared.views.models import RoutesByPool, routes_by_pool
from shared.views.shares import Shares
from web.console.board import Board, NoBoard, RecentEvents, Since, make_board
from web.console.reads import (
    Counters,
    RunningJobs,
    TenantFacts,
    divide,
    or_default,
    read_failed,
    read_running,
    read_tenant_facts,
)
from web.http.connection_bounds import DoorBound, turned_away
from web.runtime.context import DoorContext
from web.runtime.current import current_context
from web.runtime.shared_answer import SharedAnswer

_FAILED = LimitedEvent("console.failed")

#: The most streams of the console that one process keeps open. Operators are few, and each browser tab has one.
MAX_VIEWERS = 32
#: Seconds between two passes, and for how long the reader continues after the last viewer has left: a page that is
#: loaded again then shows its history.
_PASS_S, _IDLE_S = 1.0, 60.0
#: Rates are those of this many passes. Refusals and first tokens are counted for _MARKS periods of _MARK_S seconds.
_RATE_PASSES, _MARKS, _MARK_S = 10, 30, 10.0
#: The charts show this many passes.
_POINTS = 300
#: How old the facts about all tenants may be, in seconds, and which part of the time reading them may take at most. To
#: read those of 10,000 tenants takes half a second, so they are then read every 25 s.
_FACTS_AGE_S, _FACTS_PART = 5.0, 0.02

#: Makes the HTML of each panel, by its name, from a board or from the reason why the board is missing.
Render = Callable[[Board | NoBoard, RecentEvents], dict[str, str]]
Point = Mapping[str, float]
_NO_ROUTES: RoutesByPool = {}


@dataclass(frozen=True)
class Pass:
    """The result of one pass of the reader."""

    number: int
    #: None if the pass could not make one; the panels then say why.
    board: Board | None
    panels: Mapping[str, str]
    #: The new point of the charts; None if the pass has no board.
    point: Point | None


class ConsoleFeed:
    """Feeds the open consoles of one process. Its thread runs while there are viewers."""

    def __init__(self, store: Store, clock: Clock, render: Render, all_viewers: Callable[[], int]) -> None:
        """`all_viewers` returns how many viewers the process has."""
        self._store, self._clock, self._render = store, clock, render
        self._all_viewers = all_viewers
        self._facts: SharedAnswer[TenantFacts] = SharedAnswer(self._read_facts, clock, keeps_errors=False)
        self._facts_age_s = _FACTS_AGE_S
        self._routes: SharedAnswer[RoutesByPool] = SharedAnswer(self._read_routes, clock, keeps_errors=False)
        #: Guarded by the condition, which is notified after each pass.
        self._changed = threading.Condition()
        self._viewers = 0
        self._left_s = 0.0
        self._latest: Pass | None = None
        self._points: deque[Point] = deque(maxlen=_POINTS)
        self._thread: threading.Thread | None = None
        self._forget()

    def join(self) -> Callable[[], None]:
        """Count a new viewer, and start the passes if it is the first. Return the function that ends its visit.

        Only the first call of that function has an effect. Raises ApiError (503) if there are too many viewers.
        """
        with self._changed:
            if self._all_viewers() >= MAX_VIEWERS:
                message = f"{MAX_VIEWERS} pages of the console are open at this process already"
                raise turned_away(DoorBound.CONSOLE, message)
            self._viewers += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="console", daemon=True)
                self._thread.start()
        is_here = True

        def leave() -> None:
            nonlocal is_here
            with self._changed:
                if is_here:
                    is_here = False
                    self._viewers -= 1
                    self._left_s = self._clock.monotonic()

        return leave

    @property
    def viewers(self) -> int:
        """The number of open streams."""
        return self._viewers

    def next_pass(self, after: int, timeout_s: float) -> Pass | None:
        """Return the newest pass with a number over `after`; None if none is made within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._latest is not None and self._latest.number > after, timeout_s)
            latest = self._latest
        return latest if latest is not None and latest.number > after else None

    def panels(self) -> Mapping[str, str]:
        """Return the panels of the newest pass; empty if the reader does not run."""
        latest = self._latest
        return {} if latest is None else latest.panels

    def board(self) -> Board | None:
        """Return the board of the newest pass; None if the pass has no board or the reader does not run."""
        latest = self._latest
        return None if latest is None else latest.board

    def points(self) -> list[Point]:
        """Return the points of the charts up to now, the oldest first."""
        with self._changed:
            return list(self._points)

    def tenant_facts(self) -> TenantFacts:
        """Return the facts about all tenants, up to 5 s old, of many thousands older. Raises StoreUnavailable."""
        return self._facts.get(self._facts_age_s)

    def forget_tenant_facts(self) -> None:
        """Make the next look read the facts about all tenants again: an operator has changed them at this process.

        Nothing is read here, so a change that was made is not reported as an error.
        """
        self._facts.forget()

    def _read_facts(self) -> TenantFacts:
        began_s = self._clock.monotonic()
        facts = read_tenant_facts(self._store)
        self._facts_age_s = max(_FACTS_AGE_S, (self._clock.monotonic() - began_s) / _FACTS_PART)
        return facts

    def _read_routes(self) -> RoutesByPool:
        return routes_by_pool(Routes(self._store.client).read()[0])

    def _forget(self) -> None:
        self._snapshots: deque[Snapshot] = deque(maxlen=_RATE_PASSES + 1)
        self._marks: deque[Counters] = deque(maxlen=_MARKS + 1)
        self._counters: Counters | None = None
        self._shares = Shares()
        self._events = RecentEvents()
        self._points.clear()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            began_s = self._clock.monotonic()
            made = self._make_pass()
            with self._changed:
                number = 1 if self._latest is None else self._latest.number + 1
                self._latest = Pass(number, *made)
                self._changed.notify_all()
                if not self._viewers and self._clock.monotonic() - self._left_s > _IDLE_S:
                    self._thread = self._latest = None
                    self._forget()
                    return
            pause.wait(max(0.0, _PASS_S - (self._clock.monotonic() - began_s)))

    def _make_pass(self) -> tuple[Board | None, dict[str, str], Point | None]:
        try:
            board = self._read()
            point = _point(board)
            with self._changed:
                self._points.append(point)
            return board, self._render(board, self._events), point
        except StoreUnavailable as error:
            return None, self._render(NoBoard(error.fault), self._events), None
        except Exception as error:  # noqa: BLE001 - the reader must survive any value in the store: all viewers depend on it
            _FAILED.log("error", exc_info=error)
            return None, self._render(NoBoard(None), self._events), None

    def _read(self) -> Board:
        snapshot, counters = divide(self._store.snapshot(tenants=64, stats=True))
        running = or_default(lambda: read_running(self._store, snapshot.now_ms), RunningJobs((), are_all=False))
        facts = or_default(self.tenant_facts, TenantFacts())
        weights = or_default(lambda: Groups(self._store.client).weights(snapshot.groups), dict[str, float]())
        routes = or_default(lambda: self._routes.get(_FACTS_AGE_S), _NO_ROUTES)
        before = Counters(counters.at_ms, {}, {}, {}) if self._counters is None else self._counters
        failed = read_failed(self._store, before, counters)
        # Refusals before the first pass were not seen, so it is not known when they happened.
        self._events.note(self._counters or counters, counters, failed)
        self._counters = counters
        self._snapshots.append(snapshot)
        if not self._marks or counters.at_ms - self._marks[-1].at_ms >= 1000 * _MARK_S:
            self._marks.append(counters)
        sums = self._shares.add(snapshot, weights)
        since = Since(self._marks[0], counters)
        board = make_board(self._snapshots[0], snapshot, since, facts, running, sums, routes)
        return replace(board, store_fault=find_write_fault(self._store.client))


def _point(board: Board) -> Point:
    """Return the point of the charts: the time in seconds, numbers of jobs, and tokens per second."""
    frame = board.frame
    return {
        "t": frame.now_ms / 1000,
        "inflight": frame.inflight,
        "waiting": frame.waiting,
        "running": frame.running,
        "tokens": round(board.tokens_per_s, 1),
    }


#: The key of the feeds in the dict `Flask.extensions`.
EXTENSION_NAME = "penstock_console"


class ConsoleFeeds:
    """The feeds of one process: one for each cell whose console was opened."""

    def __init__(self, clock: Clock, render: Render) -> None:
        self._clock, self._render = clock, render
        #: It is replaced, not changed.
        self._feeds: Mapping[DoorContext, ConsoleFeed] = {}
        self._lock = threading.Lock()

    def of(self, context: DoorContext) -> ConsoleFeed:
        """Return the feed of a cell. A feed without viewers is forgotten when its cell is no longer served."""
        feed = self._feeds.get(context)
        if feed is not None:
            return feed
        with self._lock:
            served = context.cells.all()
            kept = {one: its for one, its in self._feeds.items() if one in served or its.viewers}
            feed = kept.get(context) or ConsoleFeed(context.store, self._clock, self._render, self._count_viewers)
            self._feeds = {**kept, context: feed}
        return feed

    def forget_tenant_facts(self) -> None:
        """Do as ConsoleFeed.forget_tenant_facts in all feeds."""
        for feed in self._feeds.values():
            feed.forget_tenant_facts()

    def _count_viewers(self) -> int:
        return sum(feed.viewers for feed in self._feeds.values())


def current_feeds() -> ConsoleFeeds:
    """Return the feeds of the current request's app."""
    feeds: ConsoleFeeds = current_app.extensions[EXTENSION_NAME]
    return feeds


def current_feed() -> ConsoleFeed:
    """Return the feed of the cell that the current request uses."""
    return current_feeds().of(current_context())
