"""Runs a worker that holds one of several models at a time: a child process with it, which is replaced on demand."""

import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.model_name import CountedModel
from shared.log import LimitedEvent, get_logger
from shared.settings.settings import Settings
from shared.store.keys import model_slug
from shared.store.replies import Snapshot, WorkerView
from shared.store.store import Store
from workers.duties.endings import encodable
from workers.exit_codes import ExitCode
from workers.place import WorkerPlace
from workers.swapping.catalog import Catalog
from workers.swapping.child import Child
from workers.swapping.failures import Failures, end_waiting
from workers.swapping.loadable import Loadable, held_elsewhere, loaded_next_elsewhere
from workers.swapping.schedule import Demand, Schedule
from workers.swapping.wishes import Wishes

log = get_logger()

#: How often the child is looked at, and how often the store is: usually, and while a model loads; in seconds.
_POLL_S, _LOOK_S, _LOADING_LOOK_S = 0.05, 1.0, 0.25
#: How long a child may take to end after its grace period.
_EXIT_MARGIN_S = 10.0
#: A model that another worker holds is loaded only if its queued work takes this many times as long as loading it.
_WORTH_A_SECOND = 4.0
#: A load that is late is expected to take this part of the time that it has taken.
_OVERDUE_PART = 0.25
#: Exit codes that another model would not change.
_FATAL = frozenset({ExitCode.CONFIG, ExitCode.STORE_UNFIT, ExitCode.CONFIG_LOST})

_UNSEEN = LimitedEvent("models.unseen", interval_s=10.0)


class ModelKeeper:
    """Holds one model of a list, and loads the next one that `workers.swapping.schedule` chooses.

    Its own heartbeats report the models that it does not hold, so that their jobs are admitted. The child's heartbeats
    report the held one.
    """

    def __init__(
        self, settings: Settings, models: Mapping[str, CountedModel], store: Store, place: WorkerPlace, clock: Clock
    ) -> None:
        self._settings, self._store, self._place, self._clock = settings, store, place, clock
        self._catalog = Catalog(settings, {name: each.model for name, each in models.items()})
        self._loadables: dict[str, Loadable] = {}
        self._schedule = Schedule(settings.loading_share, clock.monotonic())
        self._child: Child | None = None
        #: Whether the child's heartbeat was seen, and whether any child was loaded yet.
        self._is_live = self._has_loaded = False
        # Several workers of one machine begin with different models.
        self._following: str | None = list(models)[place.index % len(models)]
        self._failures = Failures()
        #: Whether an operator drains the worker: the child, or all workers.
        self._child_drains = self._loadables_drain = False
        self._wishes = Wishes()
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._looked_s = float("-inf")

    def run(self) -> ExitCode:
        """Serve until a signal arrives, or until a child ends in a way that another model would not change."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            while True:
                code = self._pass()
                if code is not None:
                    return code
                try:
                    self._signals.get(timeout=_POLL_S)
                except Empty:
                    continue
                return self._stop()
        finally:
            if self._child is not None and self._child.exit_code() is None:
                self._child.kill()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.put(number)

    def _pass(self) -> ExitCode | None:
        """Look at the child, and once a second at the store. Return the exit code if the worker must end."""
        code = None if self._child is None else self._child.exit_code()
        if self._child is not None and code is not None:
            child, was_live = self._child, self._is_live
            self._child, self._is_live, self._child_drains = None, False, False
            if code in _FATAL:
                return ExitCode(code)
            if not child.stopping:
                failure = self._failures.note(child.name, code, self._clock.monotonic())
                log.warning("model.failed", model=child.name, exit_code=code, pause_s=failure.pause_s)
                if not was_live:
                    # A load that has failed took the time of one that succeeds.
                    self._schedule.loaded(time.monotonic() - child.started_s, self._clock.monotonic())
        now_s = self._clock.monotonic()
        if code is not None or now_s - self._looked_s >= (_LOOK_S if self._is_live else _LOADING_LOOK_S):
            self._looked_s = now_s
            try:
                self._look()
            except StoreUnavailable as error:
                _UNSEEN.log("warning", error=str(error))
        return None

    @property
    def _drains(self) -> bool:
        return self._child_drains or self._loadables_drain

    def _look(self) -> None:
        snapshot, now_s = self._store.snapshot(tenants=64, workers=64), self._clock.monotonic()
        self._failures.see(snapshot.pools)
        self._follow_files(now_s)
        self._follow_child(snapshot, now_s)
        held = None if self._child is None else self._child.name
        pids = {} if self._child is None else {self._child.name: self._child.pid}
        elsewhere = held_elsewhere(snapshot.workers, pids)
        loading = loaded_next_elsewhere(snapshot.workers, {each.worker for each in self._loadables.values()})
        demands = self._demands(snapshot, elsewhere | loading, now_s)
        self._choose(held, demands, elsewhere | loading, now_s)
        self._announce(demands, elsewhere, loading, now_s)

    def _follow_files(self, now_s: float) -> None:
        """Serve the models that are there now. One whose file was replaced is loaded again."""
        changes = self._catalog.look(now_s)
        for name in changes.gone:
            log.info("model.gone", model=name)
            # Without the store, the heartbeats of the model simply end. The other changes must not be lost.
            with suppress(StoreUnavailable):
                self._withdraw(self._loadables.pop(name))
            self._failures.forget(name, is_replaced=True)
            if self._child is not None and self._child.name == name and not self._child.stopping:
                self._child.stop()
        for loadable in changes.new:
            log.info("model.found", model=loadable.model)
            self._loadables[loadable.model] = loadable

    def _follow_child(self, snapshot: Snapshot, now_s: float) -> None:
        """Note the child's first heartbeat, and keep its figures for the time after it."""
        if self._child is None or self._child.stopping or (view := self._view_of(self._child, snapshot)) is None:
            return
        loadable = self._loadables[self._child.name]  # A child whose model is gone is stopping.
        loadable.learn(view)
        self._child_drains = view.draining
        if self._is_live:
            return
        self._is_live = True
        loadable.load_s = max(0.1, time.monotonic() - self._child.started_s)
        self._schedule.loaded(loadable.load_s, now_s, is_first=not self._has_loaded)
        self._has_loaded = True
        self._failures.forget(self._child.name)
        self._withdraw(loadable)
        log.info("model.loaded", model=self._child.name, load_s=round(loadable.load_s, 2))

    def _view_of(self, child: Child, snapshot: Snapshot) -> WorkerView | None:
        host, pid = encodable(socket.gethostname()), str(child.pid)
        for view in snapshot.workers:
            if view.live and view.facts.get("pid") == pid and view.facts.get("host") == host:
                return view
        return None

    def _demands(self, snapshot: Snapshot, elsewhere: set[str], now_s: float) -> list[Demand]:
        """Return the demand for each model that is not paused after a failure."""
        found = []
        for name, loadable in self._loadables.items():
            if self._failures.is_paused(name, now_s):
                continue
            pool, slug = snapshot.pools.get(name), model_slug(name)
            work_s = snapshot.backlogs_s.get(name, 0.0)
            waiting = 0 if pool is None else pool.waiting
            if name in elsewhere and work_s < _WORTH_A_SECOND * loadable.load_s:
                waiting = 0
            weight = sum(tenant.weight for tenant in snapshot.tenants if slug in tenant.queues)
            oldest_ms = None if pool is None else pool.oldest_age_ms
            is_batch = waiting > 0 and oldest_ms is None and work_s <= 0
            if name not in elsewhere and self._wishes.is_wanted(name, now_s):
                waiting, weight, is_batch = max(waiting, 1), max(weight, 1.0), False
            found.append(
                Demand(
                    model=name,
                    waiting=waiting,
                    running=0 if pool is None else pool.running,
                    oldest_s=(oldest_ms or 0) / 1000,
                    work_s=work_s,
                    weight=weight,
                    load_s=loadable.load_s,
                    is_batch=is_batch,
                )
            )
        return found

    def _choose(self, held: str | None, demands: list[Demand], taken: set[str], now_s: float) -> None:
        """Start the child of the chosen model, or stop the present one before. Other workers have those `taken`."""
        if self._child is None:
            names = [each.model for each in demands]
            following, self._following = self._following, None
            chosen = following if following in names else self._schedule.next_model(None, demands, now_s)
            # After a failure something is loaded again, even if nobody waits, and rather what no other worker has.
            chosen = chosen or next(iter(sorted(names, key=lambda name: name in taken)), None)
            if chosen is not None and not self._drains:
                log.info("model.loading", model=chosen)
                self._child = Child(self._settings, self._catalog.models[chosen], chosen, self._place)
        elif self._is_live and not self._child.stopping and not self._drains:
            self._following = self._schedule.next_model(held, demands, now_s)
            if self._following is not None:
                log.info("model.replaced", model=self._child.name, by=self._following)
                self._child.stop()

    def _announce(self, demands: list[Demand], elsewhere: set[str], loading: set[str], now_s: float) -> None:
        """Send a heartbeat for each model that can be loaded and that no other worker holds or loads."""
        child = self._child
        held = child.name if child is not None and self._is_live and not child.stopping else None
        leading = None if child is None else (self._following if child.stopping else child.name)
        ready_s = self._schedule.ready_in_s(held, demands, now_s)
        by_name = {each.model: each for each in demands}
        drains = False
        for name, loadable in self._loadables.items():
            is_elsewhere = name in elsewhere or (name in loading and name != leading)
            if name == held or is_elsewhere:
                self._withdraw(loadable)
                continue
            is_paused = name not in by_name
            claims_in_s = self._failures.retry_in_s(name, now_s) + ready_s.get(name, loadable.load_s)
            if name == leading:
                waited_s = 0.0 if child is None or child.stopping else time.monotonic() - child.started_s
                # A load that takes longer than expected, such as a download, is expected to take longer still.
                claims_in_s = max(loadable.load_s - waited_s, _OVERDUE_PART * waited_s)
            report = loadable.report(
                claims_in_s,
                1.0 if is_paused else self._schedule.part_of(name, demands),
                self._failures.facts(name, now_s),
                loading=name == leading,
                draining=self._drains,
            )
            renewed = self._store.renew(report, [])
            self._failures.reported(name)
            if is_paused and (failure := self._failures.given_up(name)) is not None:
                end_waiting(self._store, loadable, failure)
            self._wishes.note(name, renewed.load_refusals, now_s)
            loadable.is_announced, drains = True, drains or renewed.drain
        self._loadables_drain = drains

    def _withdraw(self, loadable: Loadable) -> None:
        self._wishes.forget_count(loadable.model)
        if loadable.is_announced:
            self._store.farewell(loadable.worker, loadable.model)
            loadable.is_announced = False

    def _stop(self) -> ExitCode:
        """Let the child end its running jobs within the grace period, and return its exit code."""
        for loadable in self._loadables.values():
            try:
                self._withdraw(loadable)
            except StoreUnavailable:
                break
        if self._child is None:
            return ExitCode.DRAINED
        if not self._child.stopping:
            self._child.stop()
        end_s = time.monotonic() + self._settings.drain_grace_ms / 1000
        while (code := self._child.exit_code()) is None and time.monotonic() < end_s:
            try:
                self._signals.get(timeout=_POLL_S)
            except Empty:
                continue
            break
        if code is None:
            self._child.stop()
            end_s = time.monotonic() + _EXIT_MARGIN_S
            while (code := self._child.exit_code()) is None and time.monotonic() < end_s:
                time.sleep(_POLL_S)
        return ExitCode.FORCED if code is None else ExitCode(code) if code in set(ExitCode) else ExitCode.FORCED
