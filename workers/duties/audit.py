"""An idle worker audits the books: the same invariants that `penstock doctor` and the tests look at."""

from typing import TYPE_CHECKING

import structlog

from shared.audit.invariants import breaches
from shared.clock import Clock
from workers.duties.claimed_jobs import ClaimedJobs

if TYPE_CHECKING:
    from shared.store.store import Store

log = structlog.get_logger()

#: The audit reads every key. Idle for so long, and once in so long: it costs a busy store nothing.
IDLE_S, INTERVAL_S = 5.0, 60.0
_LOOK_S = 1.0


class Audit:
    """Looks for breaches when nothing is admitted in the whole system."""

    name = "audit"

    def __init__(self, store: "Store", claimed_jobs: ClaimedJobs, clock: Clock) -> None:
        self._store = store
        self._claimed_jobs = claimed_jobs
        self._clock = clock
        self._idle_since_s = clock.monotonic()

    def one_pass(self) -> float:
        """Audit if it is quiet. How long to rest then, in seconds. Raises StoreUnavailable."""
        now_s = self._clock.monotonic()
        if len(self._claimed_jobs):
            self._idle_since_s = now_s
        if now_s - self._idle_since_s < IDLE_S:
            return _LOOK_S
        if self._store.snapshot(tenants=1).inflight == 0:
            for breach in breaches(self._store.client):
                log.error("invariant.broken", invariant=breach.invariant, what=breach.what)
        return INTERVAL_S
