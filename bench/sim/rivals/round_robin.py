"""RR: round robin across tenants, earliest deadline first within a tenant, a bound on each tenant's queued jobs.

A job whose tenant has `bound` queued jobs is refused. A head that cannot be ready in time any more, not even with a
short answer, is dropped. There is no other bound and no prediction at the door.
"""

from collections import deque
from collections.abc import Iterator

from bench.sim.asks import Answer, SimJob
from bench.sim.memory_queue import MemoryQueue


class TenantLists(MemoryQueue):
    """One list for each tenant, ordered by deadline, with at most `bound` queued jobs. Subclasses choose the turns."""

    drops_hopeless = True

    def __init__(self, name: str, bound: float) -> None:
        super().__init__(name)
        self._bound = bound

    def refusal(self, job: SimJob, now_ms: float) -> Answer | None:  # noqa: ARG002 - a MemoryQueue's names
        """Refuse the job if its tenant's list is full."""
        if self.waiting_by_list[self.list_of(job)] >= self._bound:
            return Answer(taken=False, reason="tenant_queue_full", hint_ms=1_000)
        return None

    def list_of(self, job: SimJob) -> str:
        """Return the job's tenant, or its group."""
        return job.account

    def rank(self, job: SimJob, now_ms: float) -> float:  # noqa: ARG002 - a MemoryQueue's names
        """Return the deadline."""
        return job.deadline_at_ms


class RoundRobin(TenantLists):
    """Tenants with queued jobs take turns. A tenant that starts to wait has its first turn last."""

    def __init__(self, name: str, bound: float) -> None:
        super().__init__(name, bound)
        self._turns: deque[str] = deque()

    def turns(self) -> Iterator[str]:
        """Yield the tenants with queued jobs, each once. A tenant goes to the end when it is yielded."""
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            yield self._turns[-1]

    def on_queued(self, job: SimJob, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Give the tenant its first turn at the end."""
        if job.account not in self._turns:
            self._turns.append(job.account)

    def on_emptied(self, name: str) -> None:
        """Take the turn of a tenant without queued jobs."""
        self._turns.remove(name)
