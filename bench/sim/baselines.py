"""The baselines B1, B3, B3d, B4 and B5 of docs/overload.md, in the same simulation over the same workers.

B1  plain RQ: one job per worker at a time, first in first out, no bound, deadlines are ignored.
B3  Penstock's engine behind a first-in-first-out queue without a bound; deadlines are ignored.
B3d B3 with deadlines: the engine stops late jobs, and a job that leaves the queue late is dropped.
B4  first in first out with an inflight bound and a 503 beyond it; the engine stops late jobs.
B5  round robin across tenants with an inflight bound and a 503 beyond it; the same engine.

The bound of B4 and B5 is that of Penstock: 4 x the slots. Their 503 has the header `Retry-After: 1`.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Several

from bench.sim.asks import TAKEN, Answer, SimJob
from bench.sim.fleet import Machine, Sequence, SimWorker
from bench.sim.simulation import fleet
from bench.sim.system import Grant


class Queue:
    """A queue in memory. `bound` is the maximum number of inflight jobs, or None."""

    def __init__(self, name: str, *, bound: int | None, round_robin: bool, drops_late: bool) -> None:
        self.name = name
        self._bound, self._drops_late = bound, drops_late
        #: Whether there is one list for each tenant instead of one list for all.
        self._round_robin = round_robin
        self._lists: dict[str, deque[SimJob]] = {}
        self._turns: deque[str] = deque()
        self._inflight = 0
        self._running: set[SimJob] = set()
        self._waits = 0

    def offer(self, job: SimJob, now_ms: float, then: Callable[[Answer], None]) -> None:  # noqa: ARG002 - a System's names
        """Admit the job unless the bound is reached."""
        then(self._offer(job))

    def flush_offers(self) -> None:
        """Do nothing: every offer is answered at once."""

    def _offer(self, job: SimJob) -> Answer:
        if self._bound is not None and self._inflight >= self._bound:
            return Answer(taken=False, reason="inflight_full", hint_ms=1_000)
        name = job.tenant if self._round_robin else ""
        line = self._lists.setdefault(name, deque())
        if not line:
            self._turns.append(name)
        line.append(job)
        self._inflight += 1
        self._waits += 1
        return TAKEN

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """Return the next jobs for the worker's free slots: first in first out, or round robin across tenants."""
        grants: list[Grant] = []
        cells = worker.cells_free
        while len(grants) < worker.room and self._turns:
            name = self._turns[0]
            job = self._lists[name][0]
            late = self._drops_late and now_ms >= job.deadline_at_ms
            needs = job.prompt + job.max_tokens
            if needs > cells and not late and not job.outcome:
                break
            self._lists[name].popleft()
            self._turns.popleft()
            self._waits -= 1
            if self._lists[name]:
                self._turns.append(name)
            if job.outcome:
                continue
            if late:
                job.outcome = "expired"
                self._inflight -= 1
                continue
            cells -= needs
            self._running.add(job)
            grants.append(Grant(job, "", job.deadline_at_ms))
        return grants

    def settle(
        self,
        worker: SimWorker,  # noqa: ARG002 - a System's names
        seq: Sequence,
        outcome: str,
        now_ms: float,  # noqa: ARG002 - a System's names
        then: Callable[[str], None],
    ) -> None:
        """Accept the outcome that the engine reports."""
        self._running.discard(seq.job)
        self._inflight -= 1
        then(outcome)

    def leave(self, job: SimJob, now_ms: float) -> bool:  # noqa: ARG002 - a System's names
        """Mark a queued job as canceled, so that it is skipped when its turn comes, if the baseline knows deadlines.

        Returns whether a worker must be notified to stop the job.
        """
        if job in self._running:
            return self._drops_late
        if job.admitted_ms is not None and not job.outcome and self._drops_late:
            job.outcome = "canceled"
            self._inflight -= 1
        return False

    def heartbeat(self, worker: SimWorker, now_ms: float) -> Several[SimJob]:  # noqa: ARG002 - a System's names
        """Return no jobs: the baselines do not tell workers to stop jobs."""
        return ()

    def reap(self, now_ms: float) -> bool:  # noqa: ARG002 - a System's names
        """Do nothing: the baselines have no leases and do not reap."""
        return False

    def waiting(self) -> int:
        """Return the number of queued jobs."""
        return self._waits

    def close(self, jobs: Several[SimJob]) -> None:
        """Do nothing: jobs that are still queued have no outcome."""


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
