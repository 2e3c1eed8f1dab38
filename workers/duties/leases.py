"""Keep what we hold: renew every lease in one call, drop in the engine what was lost, stop what was canceled.

Runs on its own thread and its own connection: a step that lasts longer than a lease, or a store call
of the rounds that hangs, must not cost a job.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from shared.store.replies import Beat
from workers.duties.claimed_jobs import ClaimedJobs, key_of
from workers.engine.loop import Engine

if TYPE_CHECKING:
    from shared.store.store import Store

log = structlog.get_logger()

#: A beat a second keeps the worker live (5 s) and tells it of cancels that its bell missed.
LONGEST_REST_S = 1.0


class Leases:
    """The worker's heartbeat."""

    name = "leases"

    def __init__(
        self,
        store: "Store",
        *,
        claimed_jobs: ClaimedJobs,
        engine: Engine,
        lease_ms: int,
        beat: Callable[[], Beat],
        on_drain: Callable[[bool], None],
        on_stranger: Callable[[], None],
    ) -> None:
        self._store = store
        self._claimed_jobs = claimed_jobs
        self._engine = engine
        #: A third of the lease: two renewals may fail before it lapses.
        self._rest_s = min(lease_ms / 3000, LONGEST_REST_S)
        self._beat = beat
        self._on_drain = on_drain
        self._on_stranger = on_stranger

    def one_pass(self) -> float:
        """Beat and renew once. How long to rest then, in seconds. Raises StoreUnavailable."""
        held = self._claimed_jobs.named()
        renewed = self._store.renew(self._beat(), held, generated=self._claimed_jobs.generated())
        keys = {job.id: key_of(job) for job in held}
        for job_id in renewed.lost:
            # Not held any more under the key that was named: its end was written meanwhile, or it was claimed anew.
            entry = self._claimed_jobs.get(keys[job_id])
            if entry is not None and not entry.settling and self._claimed_jobs.let_go(entry.key) is not None:
                log.warning("job.lost", job=job_id, told_by="renew")
                self._engine.cancel(keys[job_id], drop=True)
        for job_id in renewed.canceled:
            key = self._claimed_jobs.ask_cancel(job_id)
            if key is not None:
                self._engine.cancel(key)
        self._on_drain(renewed.drain)
        if renewed.unknown_to_rq:
            self._on_stranger()
        return self._rest_s
