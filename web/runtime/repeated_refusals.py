"""Repeats a refusal of the store for a moment while a tenant floods a full pool, and has the store count it.

Only a refusal that any request of the tenant to the pool would get is repeated (shared/lua/lib/admission/hint.lua), and
only to requests that repeat no earlier one, which the store may know.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.job import NewJob
from shared.jobs.outcomes import Refusal, Refused
from shared.log import get_logger
from shared.store.store import Store

log = get_logger()

Answer = TypeVar("Answer")

#: How old a refusal that is repeated may be, in seconds, and from what age on one request in a flood asks again.
_MAX_AGE_S, _RENEW_S = 0.1, 0.05
#: A flood is this many refusals of a tenant in a pool within this time.
_FLOOD, _WINDOW_S = 4, 0.1
#: How often repeated refusals are counted in the store, in seconds, and how long to wait while it does not answer.
_COUNT_EVERY_S, _AWAY_S = 0.05, 0.25
#: How many tenants in pools are remembered. The one whose first refusal is the oldest is dropped.
_MOST = 1_024


class _Class(NamedTuple):
    """The requests that get the same refusal."""

    tenant: str
    model: str
    private: bool
    is_batch: bool


@dataclass
class _Flood:
    """The refusals of one class of requests."""

    #: The newest one of the store, and when it was asked for; None if the newest one depends on the request.
    refused: Refused | None = None
    asked_s: float = 0.0
    #: Whether a request asks the store again.
    renews: bool = False
    #: When the current window began, the refusals in it, and those in the window before it.
    window_s: float = 0.0
    count: int = 0
    before: int = 0

    def add(self, now_s: float) -> None:
        """Count a refusal."""
        if now_s - self.window_s >= _WINDOW_S:
            is_next = now_s - self.window_s < 2 * _WINDOW_S
            self.before, self.count, self.window_s = self.count if is_next else 0, 0, now_s
        self.count += 1

    @property
    def is_on(self) -> bool:
        """Whether this is a flood."""
        return max(self.count, self.before) >= _FLOOD


@dataclass
class _Uncounted:
    """Repeated refusals that the store has not counted: the tokens of their requests, and their hints in ms."""

    tokens: int = 0
    hints_ms: list[int] = field(default_factory=list)


class RepeatedRefusals:
    """The refusals that one process repeats. May be used on any thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        #: Guarded by the lock, as all below.
        self._floods: dict[_Class, _Flood] = {}
        #: By tenant, model and reason.
        self._uncounted: dict[tuple[str, str, Refusal], _Uncounted] = {}
        self._thread: threading.Thread | None = None
        #: Whether the cell has left the directory.
        self._closed = False

    def offer(self, job: NewJob, ask: Callable[[], Answer]) -> Answer | Refused:
        """Return the refusal that is repeated to a new request, else what `ask` returns. Raises what `ask` raises."""
        request = job.request
        is_alone = request.is_new and request.idem_digest is None and request.line is None
        if not is_alone or job.routing is not None or job.supersede_digest is not None or job.key_bounds is not None:
            return ask()
        kind = _Class(job.tenant, job.model, job.private, job.request.priority < 0)
        began_s = self._clock.monotonic()
        with self._lock:
            flood = self._floods.get(kind)
            repeated = None if flood is None else self._repeat(flood, job, began_s)
        if repeated is not None:
            return repeated
        try:
            answer = ask()
        finally:
            if flood is not None:
                flood.renews = False
        with self._lock:
            self._note(kind, answer, began_s)
        return answer

    def _repeat(self, flood: _Flood, job: NewJob, now_s: float) -> Refused | None:
        """Return the newest refusal with a hint of its own for this job, or None if the store must be asked."""
        refused, age_s = flood.refused, now_s - flood.asked_s
        if refused is None or refused.shared_hints_ms is None or age_s > _MAX_AGE_S or not flood.is_on:
            return None
        if refused.answer_ms is not None and job.deadline_source != "default":
            # Whether a retry can be in time depends on how long this request's own answer takes.
            return None
        if age_s > _RENEW_S and not flood.renews:
            flood.renews = True
            return None
        flood.add(now_s)
        shortest_ms, longest_ms = refused.shared_hints_ms
        hint_ms = random.randint(shortest_ms, longest_ms)  # noqa: S311 - so that not all clients return at once
        uncounted = self._uncounted.setdefault((job.tenant, job.model, refused.reason), _Uncounted())
        uncounted.tokens += job.prompt_tokens + job.max_tokens
        uncounted.hints_ms.append(hint_ms)
        if self._thread is None:
            self._thread = threading.Thread(target=self._count_all, name="refusals", daemon=True)
            self._thread.start()
        return replace(refused, retry_hint_ms=hint_ms)

    def _note(self, kind: _Class, answer: object, asked_s: float) -> None:
        """Remember the store's answer."""
        if not isinstance(answer, Refused):
            self._floods.pop(kind, None)
            return
        flood = self._floods.setdefault(kind, _Flood())
        if len(self._floods) > _MOST:
            del self._floods[next(iter(self._floods))]
        if answer.shared_hints_ms is not None:
            flood.add(self._clock.monotonic())
        if asked_s >= flood.asked_s:
            flood.refused = answer if answer.shared_hints_ms is not None else None
            flood.asked_s = asked_s

    def _count_all(self) -> None:
        """Count repeated refusals in the store until there have been none for a while."""
        pause = threading.Event()  # never set: waiting for it is a sleep
        pause_s = _COUNT_EVERY_S
        while True:
            pause.wait(pause_s)
            with self._lock:
                if not self._uncounted:
                    self._thread = None
                    return
            is_counted = self.count_now()
            if self._closed and not is_counted:
                self._uncounted = {}
            pause_s = _COUNT_EVERY_S if is_counted else _AWAY_S

    def close(self) -> None:
        """Give up what cannot be counted, because the cell has left the directory."""
        self._closed = True

    def count_now(self) -> bool:
        """Count the repeated refusals in the store. Return False if it does not answer; they are counted later then."""
        with self._lock:
            taken, self._uncounted = self._uncounted, {}
        is_away = False
        for (tenant, model, reason), uncounted in taken.items():
            try:
                self._store.count_refusals(tenant, model, reason, uncounted.tokens, uncounted.hints_ms)
            except StoreUnavailable:
                is_away = True
                with self._lock:
                    kept = self._uncounted.setdefault((tenant, model, reason), _Uncounted())
                    kept.tokens += uncounted.tokens
                    kept.hints_ms += uncounted.hints_ms
            except Exception:
                # The others are counted all the same.
                log.exception("refusals.count_fault", tenant=tenant)
        return not is_away
