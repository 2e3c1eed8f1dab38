"""Answers that many requests of this process share for up to a second, and checks that are made seldom."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import date
from functools import partial
from typing import Generic, TypeVar

import redis

from shared.accounts.usage import UsageRecords, UsageRow
from shared.clock import Clock
from shared.errors import StoreUnavailable

#: For how long an answer is shared unless its caller says otherwise, in seconds, counted from the end of its
#: computation. If it were counted from the beginning, an answer whose computation takes longer than this would not be
#: shared at all.
MAX_AGE_S = 1.0

#: From this part of its longest age on, an answer that is wanted is computed again while it is still given.
_EARLY = 0.5

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """Calls a function at most once at a time and at most once a second, and gives its answer to every caller.

    After `forget`, the function is called again at once, even while an earlier call of it is running.

    An error is an answer too. It is raised for every caller, and for no longer than a second, so that requests during
    an outage do not all wait for the store.
    """

    def __init__(
        self,
        compute: Callable[[], T],
        clock: Clock,
        *,
        keeps_errors: bool = True,
        ages_at_once: bool = False,
        computes_early: bool = False,
    ) -> None:
        """`compute` is the function. Without `keeps_errors`, an error is raised only for callers that waited for it.

        With `ages_at_once`, ages are counted from the beginning of the computation. With `computes_early`, callers that
        want the answer often wait for none but the first: another thread computes the next one in time.
        """
        self._compute, self._clock, self._keeps_errors = compute, clock, keeps_errors
        self._ages_at_once, self._computes_early = ages_at_once, computes_early
        self._lock = threading.Lock()
        #: The newest computation, which may still run, and when it ended; both are guarded by the lock.
        self._newest: Future[T] | None = None
        self._ended_s = 0.0
        #: The newest answer and when its computation ended, for callers that need no lock; None after `forget`.
        self._kept: tuple[T, float] | None = None

    def get(self, max_age_s: float = MAX_AGE_S) -> T:
        """Return an answer whose computation ended at most `max_age_s` ago or was running when this was called.

        Raises what the function raises.
        """
        kept = self._kept
        if kept is not None and (age_s := self._clock.monotonic() - kept[1]) <= max_age_s:
            if self._computes_early and age_s > _EARLY * max_age_s:
                self._compute_early(kept)
            return kept[0]
        with self._lock:
            answer, now_s = self._newest, self._clock.monotonic()
            is_shared = answer is not None and (
                not answer.done()
                or (now_s - self._ended_s <= max_age_s and (self._keeps_errors or answer.exception() is None))
            )
            if answer is None or not is_shared:
                answer = self._newest = Future()
        if not is_shared:
            self._run(answer)
        error = answer.exception()
        if error is not None:
            # All callers raise the same object. Without its traceback, which each of them would lengthen.
            raise error.with_traceback(None)
        return answer.result()

    def forget(self) -> None:
        """Make the next call of `get` begin a computation, even if one is running, because its answer has changed."""
        with self._lock:
            self._newest = self._kept = None

    def _compute_early(self, kept: tuple[T, float]) -> None:
        """Compute the next answer on another thread, unless this is done already.

        Its errors are raised only for callers that wait for it, because the kept answer has become too old meanwhile.
        """
        with self._lock:
            if self._kept is not kept or (self._newest is not None and not self._newest.done()):
                return
            answer = self._newest = Future()
        try:
            threading.Thread(target=self._run, args=(answer,), name="shared-answer", daemon=True).start()
        except RuntimeError as error:  # the process can have no more threads
            with self._lock:
                if self._newest is answer:
                    self._newest = None
            answer.set_exception(error)

    def _run(self, answer: "Future[T]") -> None:
        began_s = self._clock.monotonic() if self._ages_at_once else 0.0
        try:
            computed = self._compute()
        except BaseException as error:
            # Also when this greenlet is killed: otherwise, the callers that wait for the answer would wait forever.
            self._note_end(answer, None, began_s)
            answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._note_end(answer, (computed,), began_s)
            answer.set_result(computed)

    def _note_end(self, answer: "Future[T]", computed: tuple[T] | None, began_s: float) -> None:
        with self._lock:
            # A computation that was forgotten may end after a newer one, whose age must not begin again.
            if answer is self._newest:
                self._ended_s = began_s if self._ages_at_once else self._clock.monotonic()
                self._kept = None if computed is None else (computed[0], self._ended_s)


class SharedAnswers(Generic[T]):
    """Shared answers of a function of a name, each at most `max_age_s` old, for the names that were used last."""

    def __init__(self, compute: Callable[[str], T], clock: Clock, *, max_age_s: float, most: int) -> None:
        """`most` is how many names are remembered. An error is raised only for callers that waited for it."""
        self._compute, self._clock, self._max_age_s, self._most = compute, clock, max_age_s, most
        self._lock = threading.Lock()
        #: Guarded by the lock. The name that was used last is at the end.
        self._by_name: dict[str, SharedAnswer[T]] = {}

    def get(self, name: str) -> T:
        """Return the answer for a name. Raises what the function raises."""
        with self._lock:
            answer = self._by_name.pop(name, None)
            if answer is None:
                compute = partial(self._compute, name)
                answer = SharedAnswer(compute, self._clock, keeps_errors=False, ages_at_once=True, computes_early=True)
            self._by_name[name] = answer
            if len(self._by_name) > self._most:
                del self._by_name[next(iter(self._by_name))]
        try:
            return answer.get(self._max_age_s)
        except Exception:
            # Names without an answer, which anybody can invent, take nobody's place.
            with self._lock:
                if self._by_name.get(name) is answer:
                    del self._by_name[name]
            raise


def seldom(check: Callable[[], bool], interval_s: float, clock: Clock) -> Callable[[], bool]:
    """Return a function that calls `check` at most once in this time, and otherwise returns False.

    It also returns False while the store does not answer.
    """
    checked_s = float("-inf")

    def check_if_due() -> bool:
        nonlocal checked_s
        if clock.monotonic() - checked_s < interval_s:
            return False
        checked_s = clock.monotonic()
        with suppress(StoreUnavailable):
            return check()
        return False

    return check_if_due


#: The most answers that are kept, each of one tenant and one day. The one that was used least recently is dropped.
_MAX_KEPT = 2_048


class UsageDays:
    """Reads a tenant's usage of single days. Methods raise StoreUnavailable if the store does not answer.

    To find one tenant's series, the store examines all series of a day, up to 10,000. So a day that has passed is read
    once, because it does not change, and the current one at most once a second for each tenant.
    """

    def __init__(self, client: redis.Redis, clock: Clock) -> None:
        self._usage, self._clock = UsageRecords(client), clock
        #: Held while the store is asked, so that one process never asks for two days at once.
        self._lock = threading.Lock()
        #: The rows of each tenant and day and until when they are valid (monotonic, in s), those used last at the end.
        self._kept: dict[tuple[str, date], tuple[list[UsageRow], float]] = {}

    def __len__(self) -> int:
        """Return how many answers are kept."""
        return len(self._kept)

    def today(self) -> date:
        """Return the date of the store's time."""
        return self._usage.today()

    def read(self, tenant: str, day: date, today: date) -> list[UsageRow]:
        """Return the tenant's rows of a day. `today` is the day that the method of this name has returned."""
        with self._lock:
            now_s = self._clock.monotonic()
            rows, until_s = self._kept.pop((tenant, day), (None, now_s))
            if rows is None or until_s <= now_s:
                rows = self._usage.read_day(day, tenant)
                until_s = math.inf if day < today else now_s + MAX_AGE_S
            self._kept[tenant, day] = rows, until_s
            if len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            return rows

    def read_all(self, day: date) -> list[UsageRow]:
        """Return the rows of all tenants of a day."""
        with self._lock:
            return self._usage.read_day(day)
