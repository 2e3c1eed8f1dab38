"""Audits the store while the worker is idle, and checks the same invariants as `penstock doctor` and the tests."""

from shared.audit.invariants import find_breaches
from shared.audit.repair import give_ttls
from shared.clock import Clock
from shared.log import get_logger
from shared.store.store import Store
from workers.duties.claimed_jobs import ClaimedJobs

log = get_logger()

#: How long the worker must have been idle before an audit, and the interval between audits. An audit reads every key in
#: the store, so it must not run while the store is busy.
IDLE_S, INTERVAL_S = 5.0, 60.0
#: Interval at which the duty checks whether the worker is idle.
_POLL_S = 1.0


class Audit:
    """Checks the invariants when no job is inflight in the whole system, and logs each breach."""

    name = "audit"

    def __init__(self, store: Store, claimed_jobs: ClaimedJobs, clock: Clock) -> None:
        self._store = store
        self._claimed_jobs = claimed_jobs
        self._clock = clock
        self._idle_since_s = clock.monotonic()

    def one_pass(self) -> float:
        """Audit if the system is idle. Return the delay until the next pass in seconds. Raises StoreUnavailable."""
        now_s = self._clock.monotonic()
        if len(self._claimed_jobs):
            self._idle_since_s = now_s
        if now_s - self._idle_since_s < IDLE_S:
            return _POLL_S
        if self._store.overview().inflight == 0:
            for breach in find_breaches(self._store.client):
                log.error("invariant.broken", invariant=breach.invariant, what=breach.message)
            for key in give_ttls(self._store.client):
                log.warning("key.given_ttl", key=key)
        return INTERVAL_S
