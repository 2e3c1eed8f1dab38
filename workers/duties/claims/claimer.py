"""Claims as many jobs as there are free slots, and carries out which jobs the store pauses and resumes.

A slot is free for a claim only after the end of its previous job has been written to the store: the order of turns is
exact only if the true cost of that job is known at the next claim. Both go to the store in one packet, the end before
the claim. The exception is the prefetch: when a running job is known to end soon, the next job for its slot may be
claimed before the end. At most one job is prefetched for every eight slots, or one if a job is paused, which usually
continues in the slot. A prefetched job waits in the engine and starts in the step after the slot is freed.

If jobs can be paused, a claim tells the store what the worker runs, and a worker without a free slot claims too: when
its doorbell says that somebody else waits, and as often as the store then asks for, about once a quantum.

A claim is repeated with the same claim id until the store has answered it, so that a lost answer loses no job.
"""

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared.clock import Clock
from shared.jobs.job import ClaimRef, Ending
from shared.jobs.outcomes import EndCode
from shared.log import get_logger
from shared.store.replies import ClaimReply, ClaimRequest, Settled
from shared.store.store import Store
from workers.duties.claimed_jobs import ClaimedJobs, HeldJob
from workers.duties.claims.handover import SlotHandover
from workers.duties.claims.job_starter import JobStarter
from workers.duties.claims.preparation import Preparation
from workers.duties.slot_shares import PoolShare
from workers.engine.events import FreeCapacity
from workers.engine.inbox import max_prefetched
from workers.job_engine import JobEngine

log = get_logger()

#: How long an idle worker waits for a ring of the doorbell before it claims without one. A ring is lost if the process
#: that received it dies. A claim that finds no job costs the store about 50 µs.
POLL_S = 1.0

#: A slot that is free for longer than this while a job waits is considered idle. A claim alone may take this long.
_IDLE_AFTER_S = 0.005

#: A worker without a free slot claims at most once in this time, however often its doorbell rings.
_CONTEST_INTERVAL_S = 0.02

#: How long a pool that shares an engine counts as empty after a claim that found no job, while its doorbell is not
#: heard, in seconds. Each freed slot costs such a pool a claim otherwise.
_UNHEARD_S = 0.05


class Claimer:
    """Claims jobs for one worker. One pass runs at a time; any thread may set its flags."""

    def __init__(
        self,
        store: Store,
        worker: str,
        model: str,
        *,
        claimed_jobs: ClaimedJobs,
        engine: JobEngine,
        clock: Clock,
        fail: Callable[[HeldJob, EndCode, str, str], None],
        record_prompt: Callable[[Mapping[str, Any], int], None],
        preparation: Preparation,
        preempts: bool,
        share: PoolShare | None = None,
    ) -> None:
        """Create a claimer, which starts paused. If `preempts` is true, the store may pause jobs of this worker.

        `share` is the pool's part of an engine that serves several.

        `fail` is called to end a job that the engine rejects. `record_prompt` is called for each job that was submitted
        to the engine, with the job's payload and the number of tokens in its prompt.
        """
        self._store = store
        self._worker = worker
        self._model = model
        self._claimed_jobs = claimed_jobs
        self._engine = engine
        self._clock, self._share = clock, share
        self._preempts = preempts and engine.can_pause
        self._handover = SlotHandover(claimed_jobs, engine, clock, share)
        self.starts = JobStarter(
            claimed_jobs, engine, self._handover, preparation, fail=fail, record_prompt=record_prompt
        )
        #: Clock time and step count at which a slot became free while a job may have been waiting; None if no slot did.
        self._idle_since: tuple[float, int] | None = None
        #: Estimated number of steps that ran with a free slot after a job had already waited 5 ms for the slot. This is
        #: what late claims cost. The estimate assumes that all steps take equally long.
        self.idle_slot_steps = 0
        #: A claim that was sent but has not been answered yet, or whose answer has not been carried out. It is repeated
        #: unchanged.
        self._pending: ClaimRequest | None = None
        #: The answer to the pending claim, or its error, if it came with the ends of jobs.
        self._answer: ClaimReply | Exception | None = None
        #: Whether a job may be waiting in the pool.
        self._work_expected = True
        self._next_poll_s = 0.0
        #: Whether somebody may wait for a slot that another tenant's job has. Set by any thread.
        self._contested = False
        #: Clock time of the next claim even if no slot is free.
        self._contest_s = math.inf
        self._last_sent_s = -math.inf
        #: If true, no job is claimed: the store has answered no heartbeat yet, or an operator drains this worker.
        self.paused = True
        #: Once this is true, no job is claimed any more, because the process is ending.
        self.closed = False

    def expect_work(self) -> None:
        """Make the next pass claim, because a job may be waiting in the pool. May be called from any thread."""
        self._work_expected = True
        if self._free_capacity().slots > 0:
            self.note_free_slot()

    def expect_contest(self) -> None:
        """Make the next pass claim even without a free slot, as somebody may wait. May be called from any thread."""
        self._contested = True

    def note_free_slot(self) -> None:
        """Start to measure how long a slot is free while a job may be waiting. May be called from any thread."""
        if self._work_expected and self._idle_since is None and self._engine.free_capacity().slots > 0:
            self._idle_since = (self._clock.monotonic(), self._engine.stats.steps)

    @property
    def can_prefetch(self) -> bool:
        """Whether a slot becomes free soon and a job that could be prefetched for it may be waiting in the pool."""
        if self.closed or self.paused or not self._may_prefetch:
            return False
        return self._free_capacity().slots_ending_soon > 0

    @property
    def _may_prefetch(self) -> bool:
        """Whether a job may wait for a slot that becomes free soon: in the pool or, paused, on this worker."""
        asked_long_ago = self._clock.monotonic() - self._last_sent_s >= _CONTEST_INTERVAL_S
        return self._work_expected or (self._preempts and self._claimed_jobs.paused > 0 and asked_long_ago)

    def may_claim(self, *, hears_rings: bool) -> bool:
        """Return whether a free slot may be used. `hears_rings` says whether the pool's doorbell would have told.

        Without that, jobs may wait that nobody knows of, unless a claim has just found none. For any thread.
        """
        if self.closed or self.paused:
            return False
        asked_long_ago = self._clock.monotonic() - self._last_sent_s >= _UNHEARD_S
        return self._work_expected or self._claimed_jobs.paused > 0 or (not hears_rings and asked_long_ago)

    @property
    def claim_pending(self) -> bool:
        return self._pending is not None

    @property
    def has_free_slot(self) -> bool:
        return not self.closed and not self.paused and self._free_capacity().slots > 0

    def one_pass(self, *, slot_freed: bool) -> float | None:
        """Claim jobs if slots are free and jobs may be waiting, or if somebody may wait for a slot that is not free.

        `slot_freed` says whether slots or cells were freed since the last pass. Return the delay until the next claim
        in seconds, or None if the next claim makes sense only after a slot is freed. If it raises StoreUnavailable,
        the next pass repeats the pending claim.
        """
        if self._pending is None:
            if self.closed or self.paused:
                self.keep_slots_busy()
                return None
            delay_s = self._prepare(slot_freed=slot_freed, leaving=())
            if self._pending is None:
                return delay_s
        pending, exchange, self._answer = self._pending, self._answer, None
        if exchange is None:
            self._last_sent_s = self._clock.monotonic()
            exchange = self._store.contend(self._worker, pending)
        if isinstance(exchange, Exception):
            raise exchange
        sent_s = self._last_sent_s
        self._count_idle_steps(got_jobs=bool(exchange.started or exchange.resume))
        self._next_poll_s = sent_s + POLL_S
        if 0 < pending.room <= len(exchange.started):
            self._work_expected = True
        self._carry_out(exchange, sent_s)
        # Clear the pending claim last, because a drain must not end before the jobs are recorded as held or released.
        self._pending = None
        return self._until_due_s(self._free_capacity().slots)

    def settle(self, endings: Sequence[Ending]) -> list[Settled | Exception]:
        """Write the ends of jobs to the store and claim jobs for their slots, in one round trip if a claim is due.

        The next pass carries out what the store answers to the claim. Raises StoreUnavailable.
        """
        if self._pending is None and not (self.closed or self.paused):
            self._prepare(slot_freed=True, leaving={ending.claim for ending in endings})
        if self._pending is None or self._answer is not None:
            return self._store.settle_many(endings, self._worker)
        self._last_sent_s = self._clock.monotonic()
        settled, self._answer = self._store.settle_and_contend(endings, self._worker, self._pending)
        return settled

    def _prepare(self, *, slot_freed: bool, leaving: Collection[ClaimRef]) -> float | None:
        """Make a claim if one is due, as if the `leaving` jobs had ended. If not, return the delay like `one_pass`."""
        free = self._free_capacity(leaving)
        prefetched = free.slots_ending_soon if self._may_prefetch else 0
        room = free.slots + prefetched
        is_due = room > 0 and (self._work_expected or slot_freed or prefetched > 0)
        if not is_due and (delay_s := self._until_due_s(room)) != 0:
            return delay_s
        if room > 0:
            self._work_expected = False
        self._contested, self._contest_s = False, math.inf
        held = self._handover.report(leaving) if self._preempts else ()
        claim_id = secrets.token_urlsafe(9)
        self._pending = ClaimRequest(
            claim_id, self._model, room, free.cells, held, free.aside, free.trusts_last_attempts
        )
        return 0.0

    def _carry_out(self, exchange: ClaimReply, sent_s: float) -> None:
        for job_id in exchange.lost:
            held_job = self._claimed_jobs.find(job_id)
            if held_job is not None and self._claimed_jobs.remove(held_job.claim) is not None:
                # The store also takes a paused job back for a worker that continues it sooner.
                tell = log.warning if held_job.paused_since_s is None else log.info
                tell("job.lost", job=job_id, told_by="claim", paused=held_job.paused_since_s is not None)
                self._engine.cancel(held_job.claim, drop=True)
        if self._preempts and exchange.ask_in_ms >= 0:
            self._contest_s = sent_s + exchange.ask_in_ms / 1000
        if self.closed:
            self._handover.hand_over([], exchange.resume)
            if exchange.started:
                self._store.release(self._worker, [job.held for job in exchange.started])
        else:
            self._handover.hand_over(exchange.pause, exchange.resume)
            self.starts.start(exchange.started, sent_s)
        self.keep_slots_busy()

    def keep_slots_busy(self) -> None:
        """Resume paused jobs in free slots, without asking the store. Called inside a pass."""
        if self._preempts and self._handover.fill():
            # Tell the store soon: it counts these jobs as paused.
            self._contested = True

    def _count_idle_steps(self, *, got_jobs: bool) -> None:
        since, self._idle_since = self._idle_since, None
        if not got_jobs or since is None:
            return
        waited_s = self._clock.monotonic() - since[0]
        if waited_s > _IDLE_AFTER_S:
            steps = self._engine.stats.steps - since[1]
            self.idle_slot_steps += round(steps * (1 - _IDLE_AFTER_S / waited_s))

    def _until_due_s(self, room: int) -> float | None:
        """Return the delay until the next claim, if nothing happens before; None without one."""
        due_s = self._next_poll_s if room > 0 else math.inf
        if self._preempts:
            contest_s = -math.inf if self._contested else self._contest_s
            due_s = min(due_s, max(contest_s, self._last_sent_s + _CONTEST_INTERVAL_S))
        return None if due_s == math.inf else max(0.0, due_s - self._clock.monotonic())

    def _free_capacity(self, leaving: Collection[ClaimRef] = ()) -> FreeCapacity:
        """Return the engine's free capacity, but count each slot as taken until its job's end is in the store.

        Therefore the worker never holds more than `max_prefetched` jobs for slots that are not free. The ends of the
        `leaving` jobs count as in the store.
        """
        engine_free = self._engine.free_capacity()
        unheld = self._engine.slots - self._claimed_jobs.computing(leaving)
        if self._share is not None:
            unheld = self._share.room(self._claimed_jobs.computing() - self._claimed_jobs.computing(leaving))
        slots = max(0, min(engine_free.slots, unheld))
        ahead = max_prefetched(self._engine.slots, self._claimed_jobs.paused)
        ending_soon = max(0, min(engine_free.slots_ending_soon, unheld + ahead - slots))
        cells = max(0, engine_free.cells - self.starts.cells)
        if self._claimed_jobs.largest_paused > cells:
            # The cells of the job that is about to end are not free yet. Smaller jobs would always get its slot.
            ending_soon = 0
        return replace(engine_free, slots=slots, cells=cells, slots_ending_soon=ending_soon)
