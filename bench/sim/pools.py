"""Several queues as one system: each model has a queue of its own, as if each had its own gateway."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several

from bench.sim.asks import Answer, SimJob
from bench.sim.fleet import Sequence, SimWorker
from bench.sim.memory_queue import MemoryQueue
from bench.sim.system import Grant


class Pools:
    """A System that passes each call to the queue of the job's or the worker's model."""

    #: None of the queues pauses a running job.
    preempts = False

    def __init__(self, name: str, queues: Mapping[str, MemoryQueue]) -> None:
        self.name, self._queues = name, queues

    def offer(self, job: SimJob, now_ms: float, then: Callable[[Answer], None]) -> None:
        """Offer the job to the queue of its model."""
        self._queues[job.model].offer(job, now_ms, then)

    def flush_offers(self) -> None:
        """Do nothing: every offer is answered at once."""

    def take_ring(self, worker: SimWorker) -> bool:  # noqa: ARG002 - every queue has this method
        """Return False: a full worker is never woken."""
        return False

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """Return jobs of the worker's model."""
        return self._queues[worker.model].claim(worker, now_ms)

    def settle(
        self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float, then: Callable[[str], None]
    ) -> None:
        """Settle the job in the queue of its model."""
        self._queues[worker.model].settle(worker, seq, outcome, now_ms, then)

    def leave(self, job: SimJob, now_ms: float) -> bool:
        """Cancel the job in the queue of its model."""
        return self._queues[job.model].leave(job, now_ms)

    def heartbeat(self, worker: SimWorker, now_ms: float) -> Several[SimJob]:
        """Pass the heartbeat to the queue of the worker's model."""
        return self._queues[worker.model].heartbeat(worker, now_ms)

    def reap(self, now_ms: float) -> bool:
        """Reap in all queues. Return whether any job was queued again."""
        return sum(queue.reap(now_ms) for queue in self._queues.values()) > 0

    def has_waiting(self, model: str) -> bool:
        """Return whether any job is queued for this model."""
        return self._queues[model].has_waiting(model)

    def close(self, jobs: Several[SimJob]) -> None:
        """Do nothing: jobs that are still queued have no outcome."""
