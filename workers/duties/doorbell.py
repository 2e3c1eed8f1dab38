"""Waits at the store's two doorbells: the pool's rings for new jobs, and this worker's for cancels and followers.

A ring of the pool's doorbell reaches only one worker, so it must reach a worker that has a free slot. A worker without
a free slot forwards the ring, and stops waiting at the pool's doorbell until its job loop finds a free slot. It also
forwards a ring for a job whose prompt it has begun, because any worker can run that job.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shared.store.store import Store
from workers.duties.claimed_jobs import ClaimedJobs
from workers.job_engine import JobEngine

#: Longest time, in seconds, that one call to the store blocks. Ringing the worker's own doorbell ends the call sooner.
WAIT_S = 2.0

#: Passed to the store instead of a model name, to wait only at the worker's own doorbell.
_NO_POOL = ""


class PoolSubscription:
    """Whether the duty waits at the pool's doorbell as well, or only at the worker's own doorbell."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        #: Whether the duty waits at the pool's doorbell. The duty clears this flag before it checks for a free slot,
        #: and any thread that finds a free slot sets the flag. In this order, no freed slot is missed.
        self.active = True

    def resume(self) -> None:
        """Make the duty wait at the pool's doorbell again, because a slot is free.

        May be called from any thread. Raises StoreUnavailable.
        """
        if not self.active:
            self.active = True
            self._store.ring(self._worker)


@dataclass(eq=False)
class Doorbell:
    """Waits at the doorbells on behalf of this worker."""

    name = "doorbell"

    store: Store
    worker: str
    model: str
    claimed_jobs: ClaimedJobs
    engine: JobEngine
    pool: PoolSubscription
    has_free_slot: Callable[[], bool]
    #: Called when a job may be waiting and this worker has a free slot. It claims before it returns.
    on_work: Callable[[], None]
    #: Called when a job may be waiting for a slot that another tenant's job has.
    on_contest: Callable[[], None]
    #: Called with the id of a job that somebody begins to follow.
    on_follower: Callable[[str], None]

    def one_pass(self) -> float:
        """Wait until a doorbell rings, for up to `WAIT_S` seconds, and act on the ring.

        If the worker's doorbell rang, cancel the jobs and note the followers that it names. If a job may be queued for
        any worker, call `on_work` if this worker has a free slot; otherwise forward the ring to another worker.

        Return 0, so that the next pass runs at once. Raises StoreUnavailable.
        """
        self.pool.active = False
        if self.has_free_slot():
            self.pool.active = True
        pool = self.model if self.pool.active else _NO_POOL
        rings = self.store.wait_for_work(self.worker, pool, timeout_s=WAIT_S)
        for job_id in rings.canceled:
            if (claim := self.claimed_jobs.request_cancel(job_id)) is not None:
                self.engine.cancel(claim)
        for job_id in rings.followed:
            self.on_follower(job_id)
        if rings.contested:
            self.on_contest()
        # A job that was left to this worker can wait for its next free slot: all other workers left it, too.
        is_for_any = rings.pool or rings.for_prefix
        if (is_for_any or rings.left_a_job) and self.has_free_slot():
            self.on_work()
        elif is_for_any:
            # Forward the ring to a worker that has a free slot, or to the first worker that gets one.
            self.store.forward_ring(self.model)
        return 0.0
