"""One thread moves this worker's jobs: deliver what the engine said, then claim, always in this order.

Delivery comes first because the end of a job frees its slot and corrects its tenant's service, and the
next claim must see both. While something that is owed to the store cannot be written, nothing is claimed.
"""

import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

from shared.clock import Clock
from workers.duties.claimed_jobs import ClaimedJobs
from workers.duties.claimer import Claimer
from workers.duties.delivery import Delivery
from workers.duties.doorbell import PoolSubscription
from workers.duties.throughput import Throughput
from workers.engine.events import Ended, Event
from workers.engine.loop import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.store.store import Store


class StartEngine(Protocol):
    """Makes the engine of a worker; `workers.engine.factory.make_engine`, with its settings bound, is one."""

    def __call__(self, emit: "Callable[[Event], None]", /, *, on_ending: "Callable[[], None]") -> Engine:
        """An engine that reports to `emit` and tells `on_ending` when more jobs are about to end."""
        ...


class JobLoop:
    """The engine of one worker, and the passes of delivery and claims beside it.

    The engine's thread calls `emit` and `ends_near`; everything else runs on the thread of the passes.
    """

    name = "job_loop"

    def __init__(
        self,
        store: "Store",
        worker: str,
        model: str,
        start_engine: StartEngine,
        *,
        generated_weight: int,
        clock: Clock,
    ) -> None:
        self._clock = clock
        #: Ends the rest between two passes.
        self.wake = threading.Event()
        self.claimed_jobs = ClaimedJobs()
        self.pool = PoolSubscription(store, worker)
        self.engine = engine = start_engine(self.emit, on_ending=self.ends_near)
        self.throughput = Throughput(engine, generated_weight, clock)
        self.delivery = Delivery(
            store,
            worker,
            self.claimed_jobs,
            clock,
            wake=self.wake.set,
            drop=partial(engine.cancel, drop=True),
            learn=self.throughput.ended,
        )
        self.claimer = Claimer(
            store,
            worker,
            model,
            claimed_jobs=self.claimed_jobs,
            engine=engine,
            clock=clock,
            fail=self.delivery.fail,
            learn=self.throughput.prompted,
        )
        self._freed_before = 0

    def emit(self, event: Event) -> None:
        """Take an event of the engine; never blocks."""
        if isinstance(event, Ended):
            self.claimer.note_hunger()
        self.delivery.emit(event)

    def ends_near(self) -> None:
        """More jobs are about to end: claim ahead for their slots, if another job may wait."""
        if self.claimer.wants_ahead:
            self.wake.set()

    def look_for_work(self) -> None:
        """A job may wait in the pool: the next pass claims. Any thread."""
        self.claimer.ring()
        self.wake.set()

    def one_pass(self) -> float | None:
        """Deliver what is due, then claim; how long to rest then, in seconds. Raises StoreUnavailable."""
        text_due_s = self.delivery.one_pass()
        freed = self.delivery.freed != self._freed_before
        self._freed_before = self.delivery.freed
        rest_s = self.claimer.one_pass(freed=freed)
        if self.claimer.has_room:
            self.pool.resume()
        if text_due_s is None:
            return rest_s
        until_text_s = max(0.0, text_due_s - self._clock.monotonic())
        return until_text_s if rest_s is None else min(rest_s, until_text_s)
