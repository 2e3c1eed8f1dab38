"""Gives a worker's slots to the jobs that the store names: submits, pauses and resumes jobs, and reports their times.

The store decides which of the worker's jobs are paused. A job that must give way keeps its slot until the job that
takes the slot has been prepared and submitted, so that no step runs with an empty slot.

A slot is never left free while a job is paused. If the store does not answer, or if its answer leaves a slot free, the
job that has been paused for the longest time is resumed, and the next call tells the store so.
"""

from collections import deque
from collections.abc import Collection, Sequence

from shared.clock import Clock
from shared.jobs.job import ClaimRef
from shared.store.replies import HeldProgress
from workers.duties.claimed_jobs import ClaimedJobs, HeldJob
from workers.duties.slot_shares import PoolShare
from workers.engine.backend import Prepared
from workers.engine.events import FreeCapacity
from workers.job_engine import JobEngine


class SlotHandover:
    """The slots of one engine. Only the thread of the claimer's passes uses it."""

    def __init__(
        self, claimed_jobs: ClaimedJobs, engine: JobEngine, clock: Clock, share: PoolShare | None = None
    ) -> None:
        """`share` is the pool's part of an engine that serves several."""
        self._claimed_jobs, self._engine, self._clock, self._share = claimed_jobs, engine, clock, share
        #: Jobs that the store has paused, and that keep their slots until other jobs need the slots, in order.
        self._giving_way: deque[HeldJob] = deque()
        #: Jobs that were resumed without the store's word since the last report.
        self._unasked: deque[HeldJob] = deque()

    def report(self, leaving: Collection[ClaimRef]) -> list[HeldProgress]:
        """Return how far each held job has come, and for how long it has had its slot, without the `leaving` jobs."""
        self._unasked.clear()
        now_s, prefill_tps = self._clock.monotonic(), self._engine.facts.prefill_tps
        return [
            HeldProgress(job.claim, job.generated, job.cpu_tokens(prefill_tps), job.slot_ms(now_s))
            for job in self._claimed_jobs.jobs()
            if job.claim not in leaving
        ]

    def hand_over(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        """Let the jobs with the ids in `pause` give way to those in `resume`, and to jobs that will be submitted."""
        now_s = self._clock.monotonic()
        for held_job in filter(None, map(self._claimed_jobs.find, pause)):
            if held_job.paused_since_s is None and held_job.slot_since_s is not None:
                held_job.paused_since_s = now_s
                self._giving_way.append(held_job)
        for held_job in filter(None, map(self._claimed_jobs.find, resume)):
            if held_job in self._giving_way:
                self._giving_way.remove(held_job)
                held_job.paused_since_s = None
            else:
                self._resume(held_job)

    def submit(self, held_job: HeldJob, prepared: Prepared) -> None:
        """Submit a job to the engine. If no slot is free for it, another job gives way in the same step."""
        before = self._engine.free_capacity()
        self._engine.submit(prepared)
        held_job.slot_since_s = self._clock.monotonic()
        self._make_way(before, prepared.cells)

    def fill(self) -> bool:
        """Resume paused jobs in slots that no other job is about to take. Return whether one did."""
        jobs, went_on = self._claimed_jobs.jobs(), list[HeldJob]()
        paused = sorted(
            (job for job in jobs if job.paused_since_s is not None), key=lambda job: job.paused_since_s or 0.0
        )
        if not paused:
            return False
        # Jobs that are being prepared take the next free slots.
        preparing = sum(job.slot_since_s is None for job in jobs)
        free = self._engine.free_capacity().slots - preparing
        if self._share is not None:
            free = min(free, self._share.room(0))
        for held_job in paused:
            if held_job in self._giving_way:
                goes_on = not preparing
            else:
                goes_on = len(went_on) < free and self._engine.resume(held_job.claim, if_free=True)
                held_job.slot_since_s = self._clock.monotonic() if goes_on else held_job.slot_since_s
            if goes_on:
                held_job.paused_since_s = None
                went_on.append(held_job)
        if not preparing:
            self._giving_way.clear()
        self._unasked += went_on
        return bool(went_on)

    def _resume(self, held_job: HeldJob) -> None:
        before = self._engine.free_capacity()
        if self._engine.resume(held_job.claim):
            held_job.slot_since_s, held_job.paused_since_s = self._clock.monotonic(), None
            self._make_way(before, held_job.claimed.cells)

    def _make_way(self, before: FreeCapacity, cells: int) -> None:
        """Pause a job for one just submitted or resumed, unless it had a free slot and `cells` cells."""
        if before.slots > 0 and before.cells >= cells:
            return
        while self._giving_way:
            if self._engine.pause(self._giving_way.popleft().claim):
                return
        # A claim whose answer was lost may have started a job for a slot in which a paused job has been resumed since.
        while self._unasked:
            held_job = self._unasked.pop()
            if self._engine.pause(held_job.claim):
                held_job.paused_since_s = self._clock.monotonic()
                return
