"""llm-d-like flow control: tenants take turns, earliest deadline first, and a queued job lives for a limited time.

The door admits every job while the queues hold fewer than `MOST_QUEUED` jobs. A job that has waited for `ttl_ms` is
dropped, as is a late one. The original limits the queues in bytes and starts a job when the model servers are not
saturated; here a free slot starts it.
"""

from bench.sim.asks import Answer, SimJob
from bench.sim.fleet import SimWorker
from bench.sim.rivals.round_robin import RoundRobin

#: The most queued jobs: about a gigabyte of requests of 64 KiB.
MOST_QUEUED = 16_384


class FlowControl(RoundRobin):
    """Round robin over lists that are bounded by time."""

    drops_hopeless = False

    def __init__(self, name: str, ttl_ms: float) -> None:
        super().__init__(name, bound=float("inf"))
        self._ttl_ms = ttl_ms
        #: When each queued job is dropped, the oldest job first.
        self._until_ms: dict[SimJob, float] = {}

    def refusal(self, job: SimJob, now_ms: float) -> Answer | None:  # noqa: ARG002 - a MemoryQueue's names
        """Refuse the job if the queues are full."""
        self._drop_old(now_ms)
        if self.waiting_by_list.total() >= MOST_QUEUED:
            return Answer(taken=False, reason="queues_full", hint_ms=1_000)
        return None

    def on_queued(self, job: SimJob, now_ms: float) -> None:
        """Note until when the job may wait."""
        super().on_queued(job, now_ms)
        self._until_ms[job] = now_ms + self._ttl_ms

    def on_claimed(self, job: SimJob, worker: SimWorker, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Stop the time of a job that gets a slot."""
        del self._until_ms[job]

    def on_ended(self, job: SimJob, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Stop the time of a job that is dropped or canceled."""
        self._until_ms.pop(job, None)

    def is_expired(self, job: SimJob, now_ms: float) -> bool:
        """Return whether the job's time in the queue or its deadline is over."""
        return now_ms >= self._until_ms[job] or super().is_expired(job, now_ms)

    def _drop_old(self, now_ms: float) -> None:
        """Drop the jobs whose time is over, wherever they are in their lists."""
        while self._until_ms:
            job, until_ms = next(iter(self._until_ms.items()))
            if until_ms > now_ms:
                break
            self._end_queued(job, "expired", now_ms)
