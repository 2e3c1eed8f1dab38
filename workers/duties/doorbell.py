"""Hear the store's two bells: a job may wait in the pool, and somebody canceled a job that runs here.

A ring of the pool's bell reaches one worker only. One without a free slot must not take it from one
that has: it hands a ring on and is deaf to the pool until its rounds say that there is room again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from workers.duties.claimed_jobs import ClaimedJobs
from workers.engine.loop import Engine

if TYPE_CHECKING:
    from shared.store.store import Store

#: How long one call waits. Whoever wants the thread back sooner rings the worker's own bell.
WAIT_S = 2.0

#: A pool that nobody rings.
_NO_POOL = ""


class PoolSubscription:
    """Whether the doorbell's wait includes the pool, or only the worker's own bell."""

    def __init__(self, store: "Store", worker: str) -> None:
        self._store = store
        self._worker = worker
        #: Cleared by the doorbell before it looks for room, set by whoever finds room: so no room goes unnoticed
        #: in between.
        self.active = True

    def resume(self) -> None:
        """There is room: wait for the pool again. Callable by any thread; raises StoreUnavailable."""
        if not self.active:
            self.active = True
            self._store.ring(self._worker)


class Doorbell:
    """Waits at the store for this worker."""

    name = "bell"

    def __init__(
        self,
        store: "Store",
        worker: str,
        model: str,
        *,
        claimed_jobs: ClaimedJobs,
        engine: Engine,
        pool: PoolSubscription,
        has_room: Callable[[], bool],
        on_work: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._model = model
        self._claimed_jobs = claimed_jobs
        self._engine = engine
        self._pool = pool
        self._has_room = has_room
        self._on_work = on_work

    def one_pass(self) -> float:
        """Wait once and pass on what was heard. Rests not at all. Raises StoreUnavailable."""
        self._pool.active = False
        if self._has_room():
            self._pool.active = True
        pool = self._model if self._pool.active else _NO_POOL
        may_wait, canceled = self._store.wait_for_work(self._worker, pool, timeout_s=WAIT_S)
        for job_id in canceled:
            key = self._claimed_jobs.ask_cancel(job_id)
            if key is not None:
                self._engine.cancel(key)
        if may_wait and self._has_room():
            self._on_work()
        elif may_wait:
            # For a worker that has room, or gets it first.
            self._store.hand_on(self._model)
        return 0.0
