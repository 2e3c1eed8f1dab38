"""The interface of the queue between clients and workers, which Penstock and each baseline implement."""

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Protocol

from bench.sim.asks import Answer, SimJob
from bench.sim.fleet import Sequence, SimWorker


@dataclass(frozen=True, slots=True)
class Grant:
    """A claimed job that a worker may run. Times are ms of virtual time."""

    job: SimJob
    token: str
    deadline_at_ms: float
    start_by_ms: float | None = None


class System(Protocol):
    """A queue. Every call happens at the time `now_ms`, which never decreases."""

    name: str

    @property
    def preempts(self) -> bool:
        """Whether `claim` may pause running jobs, and is also called for workers without a free slot."""

    def offer(self, job: SimJob, now_ms: float, then: Callable[[Answer], None]) -> None:
        """Offer a client's job. `then` is called with the answer, at the latest in `flush_offers`."""

    def flush_offers(self) -> None:
        """Answer all deferred calls."""

    def take_ring(self, worker: SimWorker) -> bool:
        """Return whether a worker without a free slot was woken since the last call, to pause one of its jobs."""

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """Return jobs for the worker's free slots."""

    def settle(
        self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float, then: Callable[[str], None]
    ) -> None:
        """Settle a job that ended in the engine. `then` is called with the final outcome, or "" if the job was lost."""

    def leave(self, job: SimJob, now_ms: float) -> bool:
        """Cancel the job of a client that leaves. Return whether a worker must be notified."""

    def heartbeat(self, worker: SimWorker, now_ms: float) -> Several[SimJob]:
        """Process a worker's heartbeat. Return the jobs that the worker must stop."""

    def reap(self, now_ms: float) -> bool:
        """Run one reaping pass. Return whether any job was requeued."""

    def has_waiting(self, model: str) -> bool:
        """Return whether any job is queued for this model."""

    def close(self, jobs: Several[SimJob]) -> None:
        """Called after the run: set the outcomes of the jobs that ended without a settle."""
