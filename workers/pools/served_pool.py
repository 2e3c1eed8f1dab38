"""One pool that a worker serves, as the supervisor runs it: its job loop, its heartbeat and its duties."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.store.store import Store
from workers.duties.doorbell import Doorbell
from workers.duties.heartbeat import Heartbeat
from workers.duties.job_loop import JobLoop
from workers.duties.leases import Leases
from workers.duty import Duty


@dataclass(eq=False)
class ServedPool:
    """A pool of this process. In the store it is a worker of its own, whose name is that of its heartbeat."""

    job_loop: JobLoop
    heartbeat: Heartbeat

    @property
    def worker(self) -> str:
        return self.heartbeat.worker

    @property
    def model(self) -> str:
        return self.heartbeat.model

    @property
    def holds_jobs(self) -> bool:
        """Whether jobs are held, or anything about them remains to be written to the store."""
        return bool(len(self.job_loop.claimed_jobs)) or self.job_loop.delivery.has_unsent

    def duties(
        self,
        store: Store,
        lease_ms: int,
        *,
        on_failure: Callable[[str], None],
        on_drain: Callable[["ServedPool", bool], None],
        on_unregistered: Callable[[], None],
    ) -> tuple[Duty, Duty, Duty]:
        """Return the duties for the leases, the job loop and the doorbell, which start in this order.

        The job loop comes before the doorbell, which wakes the job loop or runs its passes.
        """
        loop = self.job_loop
        leases = Leases(
            store,
            claimed_jobs=loop.claimed_jobs,
            engine=loop.engine,
            lease_ms=lease_ms,
            make_report=self.heartbeat.report,
            on_drain=lambda paused: on_drain(self, paused),
            on_unregistered=on_unregistered,
        )
        doorbell = Doorbell(
            store,
            self.worker,
            self.model,
            claimed_jobs=loop.claimed_jobs,
            engine=loop.engine,
            pool=loop.pool,
            has_free_slot=lambda: loop.claimer.has_free_slot,
            on_work=loop.claim_now,
            on_contest=loop.contest,
            on_follower=loop.delivery.note_follower,
        )
        duty = Duty(leases, on_failure)
        if loop.share is not None:
            loop.share.report = duty.wake
        return duty, Duty(loop, on_failure, loop.wake), Duty(doorbell, on_failure)
