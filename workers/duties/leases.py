"""Sends the heartbeat and renews all leases in one call, then handles lost leases and requested cancels.

This duty runs on its own thread and uses its own connection, so that no lease is lost when an engine step lasts longer
than a lease, or when a call to the store blocks the job loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shared.log import get_logger
from shared.store.replies import HeartbeatReport
from shared.store.store import Store
from workers.duties.claimed_jobs import ClaimedJobs
from workers.job_engine import JobEngine

log = get_logger()

#: Longest delay between heartbeats, in seconds. With one heartbeat a second, the worker stays live (a worker is
#: considered live for 5 s after its last heartbeat), and it soon learns of a cancel that its doorbell missed.
LONGEST_INTERVAL_S = 1.0


@dataclass(eq=False)
class Leases:
    """Keeps the worker live and its claims valid."""

    name = "leases"

    store: Store
    claimed_jobs: ClaimedJobs
    engine: JobEngine
    lease_ms: int
    #: Creates the report for each heartbeat.
    make_report: Callable[[], HeartbeatReport]
    #: Called after each heartbeat: with True if an operator drains this worker, and with False otherwise.
    on_drain: Callable[[bool], None]
    #: Called if RQ has no record of this worker.
    on_unregistered: Callable[[], None]
    #: Whether the worker has been removed from the live workers because the engine's upstream is away.
    _absent: bool = False
    #: The pool's refusals that the last heartbeat counted.
    _load_refusals: int | None = None

    @property
    def _interval_s(self) -> float:
        """At most a third of the lease, so that two renewals may fail before the lease expires."""
        return min(self.lease_ms / 3000, LONGEST_INTERVAL_S)

    def one_pass(self) -> float:
        """Send one heartbeat. Return the delay until the next pass in seconds. Raises StoreUnavailable.

        A worker whose engine cannot run jobs, and that holds none, is not live: it sends no heartbeat.
        """
        held = self.claimed_jobs.held()
        if not held and not self.engine.free_capacity().live:
            self._stay_absent()
            return self._interval_s
        self._absent = False
        progress = self.claimed_jobs.progress(self.engine.facts.prefill_tps)
        renewed = self.store.renew(self.make_report(), held, progress=progress)
        lost = set(renewed.lost)
        for claim in (claim for claim in held if claim.id in lost):
            # A job that is no longer held under this claim was settled or claimed again in the meantime, and not lost.
            held_job = self.claimed_jobs.get(claim)
            if held_job is not None and not held_job.settling and self.claimed_jobs.remove(claim) is not None:
                log.warning("job.lost", job=claim.id, told_by="renew")
                self.engine.cancel(claim, drop=True)
        for job_id in renewed.canceled:
            if (canceled := self.claimed_jobs.request_cancel(job_id)) is not None:
                self.engine.cancel(canceled)
        if self._load_refusals is not None and renewed.load_refusals > self._load_refusals:
            self.engine.note_demand()
        self._load_refusals = renewed.load_refusals
        self.on_drain(renewed.drain)
        if renewed.unknown_to_rq:
            self.on_unregistered()
        return self._interval_s

    def _stay_absent(self) -> None:
        """Remove the worker from the live workers, once, so that admission does not count on it."""
        if not self._absent:
            report = self.make_report()
            self.store.farewell(report.worker, report.model)
            self._absent = True
