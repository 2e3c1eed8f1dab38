"""The baselines B1, B3, B3d, B4 and B5 of bench/README.md, in the same simulation over the same workers.

B1  plain RQ: one job per worker at a time, first in first out, no bound, deadlines are ignored.
B3  Penstock's engine behind a first-in-first-out queue without a bound; deadlines are ignored.
B3d B3 with deadlines: the engine stops late jobs, and a job that leaves the queue late is dropped.
B4  first in first out with an inflight bound and a 503 beyond it; the engine stops late jobs.
B5  round robin across tenants with an inflight bound and a 503 beyond it; the same engine.

The bound of B4 and B5 is that of Penstock: 4 x the slots. Their 503 has the header `Retry-After: 1`.
"""

from collections import deque
from collections.abc import Iterator

from bench.sim.asks import Answer, SimJob
from bench.sim.fleet import SimWorker
from bench.sim.machine import Machine
from bench.sim.memory_queue import MemoryQueue
from bench.sim.simulation import fleet


class Queue(MemoryQueue):
    """A queue with an optional bound. `bound` is the maximum number of inflight jobs, or None."""

    drop_ends_turn = True

    def __init__(self, name: str, *, bound: int | None, round_robin: bool, drops_late: bool) -> None:
        super().__init__(name)
        self.drops_late = drops_late
        self._bound = bound
        #: Whether there is one list for each tenant instead of one list for all.
        self._round_robin = round_robin
        self._turns: deque[str] = deque()

    def refusal(self, job: SimJob, now_ms: float) -> Answer | None:  # noqa: ARG002 - a MemoryQueue's names
        """Refuse the job if the bound is reached."""
        if self._bound is not None and self.inflight >= self._bound:
            return Answer(taken=False, reason="inflight_full", hint_ms=1_000)
        return None

    def list_of(self, job: SimJob) -> str:
        """Return the job's tenant if tenants take turns."""
        return job.tenant if self._round_robin else ""

    def turns(self) -> Iterator[str]:
        """Yield the tenants with queued jobs, each once. A tenant goes to the end when it is yielded."""
        if not self._round_robin:
            yield ""
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            yield self._turns[-1]

    def on_queued(self, job: SimJob, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Give the tenant its first turn at the end."""
        if self._round_robin and job.tenant not in self._turns:
            self._turns.append(job.tenant)

    def on_emptied(self, name: str) -> None:
        """Take the turn of a tenant without queued jobs."""
        if self._round_robin:
            self._turns.remove(name)


def baseline(name: str, workers: int, machine: Machine) -> tuple[Queue, list[SimWorker]]:
    """Return the baseline of this name and its fleet."""
    if name == "B1":
        one_slot = Machine(**(vars(machine) | {"slots": 1}))
        return Queue(name, bound=None, round_robin=False, drops_late=False), fleet(
            workers, one_slot, heeds_deadlines=False
        )
    bound = None if name in {"B3", "B3d"} else 4 * workers * machine.slots
    knows_deadlines = name != "B3"
    return (
        Queue(name, bound=bound, round_robin=name == "B5", drops_late=knows_deadlines),
        fleet(workers, machine, heeds_deadlines=knows_deadlines),
    )
