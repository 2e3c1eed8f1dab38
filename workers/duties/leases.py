"""Sends the heartbeat and renews all leases in one call, then handles lost leases and requested cancels.

This duty runs on its own thread and uses its own connection, so that no lease is lost when an engine step lasts longer
than a lease, or when a call to the store blocks the job loop.
"""

from collections.abc import Callable

from shared.log import get_logger
from shared.store.replies import HeartbeatReport
from shared.store.store import Store
from workers.duties.claimed_jobs import ClaimedJobs
from workers.job_engine import JobEngine

log = get_logger()

#: Longest delay between heartbeats, in seconds. With one heartbeat a second, the worker stays live (a worker is
#: considered live for 5 s after its last heartbeat), and it soon learns of a cancel that its doorbell missed.
LONGEST_INTERVAL_S = 1.0


class Leases:
    """Keeps the worker live and its claims valid."""

    name = "leases"

    def __init__(
        self,
        store: Store,
        *,
        claimed_jobs: ClaimedJobs,
        engine: JobEngine,
        lease_ms: int,
        make_report: Callable[[], HeartbeatReport],
        on_drain: Callable[[bool], None],
        on_unregistered: Callable[[], None],
    ) -> None:
        """Create the duty.

        `make_report` creates the report for each heartbeat. After each heartbeat, `on_drain` is called with True if an
        operator drains this worker, and with False otherwise. `on_unregistered` is called if RQ has no record of this
        worker.
        """
        self._store = store
        self._claimed_jobs = claimed_jobs
        self._engine = engine
        #: At most a third of the lease, so that two renewals may fail before the lease expires.
        self._interval_s = min(lease_ms / 3000, LONGEST_INTERVAL_S)
        self._make_report = make_report
        self._on_drain = on_drain
        self._on_unregistered = on_unregistered
        #: Whether the worker has been removed from the live workers because the engine's upstream is away.
        self._absent = False
        #: The pool's refusals that the last heartbeat counted.
        self._load_refusals: int | None = None

    def one_pass(self) -> float:
        """Send one heartbeat. Return the delay until the next pass in seconds. Raises StoreUnavailable.

        A worker whose engine cannot run jobs, and that holds none, is not live: it sends no heartbeat.
        """
        held = self._claimed_jobs.held()
        if not held and not self._engine.free_capacity().live:
            self._stay_absent()
            return self._interval_s
        self._absent = False
        progress = self._claimed_jobs.progress(self._engine.facts.prefill_tps)
        renewed = self._store.renew(self._make_report(), held, progress=progress)
        lost = set(renewed.lost)
        for claim in (claim for claim in held if claim.id in lost):
            # A job that is no longer held under this claim was settled or claimed again in the meantime, and not lost.
            held_job = self._claimed_jobs.get(claim)
            if held_job is not None and not held_job.settling and self._claimed_jobs.remove(claim) is not None:
                log.warning("job.lost", job=claim.id, told_by="renew")
                self._engine.cancel(claim, drop=True)
        for job_id in renewed.canceled:
            if (canceled := self._claimed_jobs.request_cancel(job_id)) is not None:
                self._engine.cancel(canceled)
        if self._load_refusals is not None and renewed.load_refusals > self._load_refusals:
            self._engine.note_demand()
        self._load_refusals = renewed.load_refusals
        self._on_drain(renewed.drain)
        if renewed.unknown_to_rq:
            self._on_unregistered()
        return self._interval_s

    def _stay_absent(self) -> None:
        """Remove the worker from the live workers, once, so that admission does not count on it."""
        if not self._absent:
            report = self._make_report()
            self._store.farewell(report.worker, report.model)
            self._absent = True
