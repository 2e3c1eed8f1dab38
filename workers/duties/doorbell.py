"""Hear the store's two bells: a job may wait in the pool, and somebody canceled a job that runs here.

A ring of the pool's bell reaches one worker only. One without a free slot must not take it from one
that has: it hands a ring on and is deaf to the pool until its rounds say that there is room again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from workers.duties.claimed_jobs import Holding
from workers.engine.loop import Engine

if TYPE_CHECKING:
    from shared.store.store import Store

#: How long one call waits. Whoever wants the thread back sooner rings the worker's own bell.
WAIT_S = 2.0

#: A pool that nobody rings.
_NO_POOL = ""


class Bell:
    """Waits at the store for this worker."""

    name = "bell"

    def __init__(
        self,
        store: "Store",
        worker: str,
        model: str,
        *,
        holding: Holding,
        engine: Engine,
        has_room: Callable[[], bool],
        on_work: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._model = model
        self._holding = holding
        self._engine = engine
        self._has_room = has_room
        self._on_work = on_work
        #: Whether the call under way hears the worker's own bell only. Set by this thread before it
        #: looks for room, cleared by whoever finds room: so that no room goes unnoticed in between.
        self._deaf = False

    def one_pass(self) -> float:
        """Wait once and pass on what was heard. Rests not at all. Raises StoreUnavailable."""
        self._deaf = True
        if self._has_room():
            self._deaf = False
        pool = _NO_POOL if self._deaf else self._model
        may_wait, canceled = self._store.wait_for_work(self._worker, pool, timeout_s=WAIT_S)
        for job_id in canceled:
            key = self._holding.ask_cancel(job_id)
            if key is not None:
                self._engine.cancel(key)
        if may_wait and self._has_room():
            self._on_work()
        elif may_wait:
            # For a worker that has room, or gets it first.
            self._store.hand_on(self._model)
        return 0.0

    def listen(self) -> None:
        """There is room: hear the pool again. Callable by any thread; raises StoreUnavailable."""
        if self._deaf:
            self._deaf = False
            self._store.ring(self._worker)
