"""The duty that moves this worker's jobs: each pass delivers the engine's events to the store, then claims jobs.

Delivery comes first because the end of a job frees its slot and corrects its tenant's service, and the next claim must
take both into account. While events cannot be written because the store is unavailable, no job is claimed.

The thread that hears of a new job runs a pass itself, so that an idle worker claims the job without waking another
thread. One pass runs at a time.
"""

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.job import Ending
from shared.log import get_logger
from shared.store.replies import Settled
from shared.store.store import Store
from shared.tracing.spans import Traces
from workers.duties.claimed_jobs import ClaimedJobs
from workers.duties.claims.claimer import Claimer
from workers.duties.claims.preparation import Preparation
from workers.duties.delivery import Delivery
from workers.duties.doorbell import PoolSubscription
from workers.duties.job_spans import JobSpans
from workers.duties.slot_shares import PoolShare, SlotShares
from workers.duties.text_pacing import TextPacing
from workers.duties.throughput import Throughput
from workers.engine.events import Ended, Event
from workers.job_engine import JobEngine

log = get_logger()


class StartEngine(Protocol):
    """The type of a function that creates a worker's engine: `make_job_engine` with its other arguments bound."""

    def __call__(self, emit: Callable[[Event], None], /, *, on_ending: Callable[[], None]) -> JobEngine:
        """Return an engine that reports to `emit`, and calls `on_ending` if jobs can be claimed before one ends."""
        ...


class JobLoop:
    """The engine of one worker, and the delivery and the claimer that connect it to the store.

    The engine's thread calls `emit` and `request_prefetch`. Everything else runs inside a pass, unless its docstring
    says otherwise.
    """

    name = "job_loop"

    def __init__(
        self,
        store: Store,
        worker: str,
        model: str,
        start_engine: StartEngine,
        *,
        generated_weight: int,
        prepare_threads: int,
        preempts: bool,
        resume_tokens: int,
        clock: Clock,
        interval_s: float = 0.0,
        traces: Traces | None = None,
        shares: SlotShares | None = None,
    ) -> None:
        """Create the job loop of one pool. `shares` are those of an engine that serves several."""
        self._clock = clock
        spans = JobSpans(traces or Traces(), worker, clock)
        #: Setting this event starts the next pass at once.
        self.wake = threading.Event()
        self.claimed_jobs = ClaimedJobs(spans.claimed)
        self.pool = PoolSubscription(store, worker)
        self.engine = engine = start_engine(self.emit, on_ending=self.request_prefetch)
        self.throughput = Throughput(engine, generated_weight, clock)
        self.delivery = Delivery(
            store,
            worker,
            self.claimed_jobs,
            clock,
            wake=self.wake.set,
            drop=partial(engine.cancel, drop=True),
            record_usage=self.throughput.record_usage,
            facts=engine.facts,
            pacing=TextPacing(engine.facts.fingerprint, resume_tokens, interval_s),
            spans=spans,
            settle=self._settle,
        )
        self._store, self._worker = store, worker
        self.share = None if shares is None else shares.join(self.claimed_jobs)
        self.claimer = Claimer(
            store,
            worker,
            model,
            claimed_jobs=self.claimed_jobs,
            engine=engine,
            clock=clock,
            fail=self.delivery.fail,
            record_prompt=self.throughput.sizes.observe,
            preparation=Preparation(engine.prepare, prepare_threads, self.wake.set),
            preempts=preempts,
            share=self.share,
        )
        if self.share is not None:
            self._join(self.share)
        self._last_slots_freed = 0
        #: Held during a pass.
        self._passing = threading.Lock() if shares is None else shares.passing
        #: Clock time at which the duty's thread runs the next pass unless it is woken.
        self._due_s = math.inf

    def _join(self, share: PoolShare) -> None:
        share.may_wait = lambda: self.claimer.may_claim(hears_rings=self.pool.active)
        share.wake = self.look_for_work

    def emit(self, event: Event) -> None:
        """Accept an event from the engine. This method never blocks."""
        if isinstance(event, Ended):
            self.claimer.note_free_slot()
        self.delivery.emit(event)

    def request_prefetch(self) -> None:
        """Start a pass to claim jobs, if the engine has slots for them that no Ended event has announced.

        These are slots that are about to become free, or those of an upstream that takes requests again.
        """
        if self.claimer.can_prefetch or self.claimer.has_free_slot:
            self.wake.set()

    def look_for_work(self) -> None:
        """Start a pass that claims jobs, because one may be waiting in the pool. May be called from any thread."""
        self.claimer.expect_work()
        self.wake.set()

    def claim_now(self) -> None:
        """Run a pass on this thread, because a job may be waiting in the pool. Raises StoreUnavailable.

        If a pass runs already, the duty's thread runs another one after it.
        """
        self.claimer.expect_work()
        if not self._passing.acquire(blocking=False):
            self.wake.set()
            return
        due_s = -math.inf
        try:
            due_s = self._pass()
        except StoreUnavailable:
            raise
        except Exception:
            # The duty's thread tries again, and its faults are counted.
            log.exception("job_loop.fault")
        finally:
            self._passing.release()
            if due_s < self._due_s:
                self.wake.set()

    def contest(self) -> None:
        """Start a pass that claims even without a free slot, as somebody may wait. May be called from any thread."""
        self.claimer.expect_contest()
        self.wake.set()

    def one_pass(self) -> float | None:
        """Deliver what is due, then claim. Raises StoreUnavailable.

        Return the delay until the next pass in seconds, or None to wait for a wake.
        """
        with self._passing:
            self._due_s = due_s = self._pass()
        return None if due_s == math.inf else max(0.0, due_s - self._clock.monotonic())

    def _pass(self) -> float:
        """Return the clock time of the next pass, or infinity to wait for a wake."""
        self.claimer.starts.submit_prepared()
        try:
            return self._deliver_and_claim()
        except StoreUnavailable:
            # The engine continues with the jobs that it has.
            self.claimer.keep_slots_busy()
            raise

    def _settle(self, endings: Sequence[Ending], is_last: bool) -> list[Settled | Exception]:
        return self.claimer.settle(endings) if is_last else self._store.settle_many(endings, self._worker)

    def _deliver_and_claim(self) -> float:
        next_text_s = self.delivery.one_pass()
        slot_freed = self.delivery.slots_freed != self._last_slots_freed
        self._last_slots_freed = self.delivery.slots_freed
        delay_s = self.claimer.one_pass(slot_freed=slot_freed)
        if self.share is not None:
            self.share.pass_on()
        if self.claimer.has_free_slot:
            self.pool.resume()
        next_claim_s = math.inf if delay_s is None else self._clock.monotonic() + delay_s
        return next_claim_s if next_text_s is None else min(next_claim_s, next_text_s)
