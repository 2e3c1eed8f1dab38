"""A deployment of many cells, which advance by one second each and then meet at a barrier.

At a barrier the doors learn the directory and which cells are away, and pass on what has spilled. A spilled job
therefore reaches its next cell one second after it was refused, where a real door needs milliseconds. Its wait and its
deadline count from there. A job that is offered to a cell before the doors know that it is away spills in the same way,
and the second stands for the timeout of the store.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import redis

from bench.common import private_store
from bench.sim.asks import SimJob
from bench.sim.cells.cell import Cell, CellPlan
from bench.sim.cells.doors import SPILLS, Change, Doors
from bench.sim.simulation import Run
from shared.cells.directory import Directory
from shared.jobs.outcomes import Refusal

BARRIER_MS = 1_000.0
#: The reason of a request that no door received, because its region was lost.
NO_DOOR = "no_door"


@dataclass(eq=False)
class Request:
    """A client's request, and what the doors did with it."""

    #: The job as the client sends it.
    job: SimJob
    #: The region at whose doors it arrives.
    region: str = ""
    #: The cells to which it was offered, and the job in each of them.
    offers: list[tuple[str, SimJob]] = field(default_factory=list)
    #: Why it was not admitted; that of the first cell that refused it.
    reason: str = ""
    #: Whether it was offered to a second cell after a refusal, or because its cell was away.
    spilled: bool = False

    @property
    def admitted(self) -> SimJob | None:
        """The job in the cell that admitted it."""
        return next((job for _, job in self.offers if job.admitted_ms is not None), None)

    @property
    def in_time(self) -> bool:
        """Whether its answer was ready before the deadline."""
        return self.admitted is not None and self.admitted.in_time


@dataclass(frozen=True)
class Deployed:
    """The results of a run."""

    requests: list[Request]
    cells: dict[str, Cell]
    runs: dict[str, Run]
    #: The directory at the end.
    directory: Directory


@dataclass(frozen=True)
class Mail:
    """A job on its way to its second cell."""

    at_ms: float
    request: Request
    cell: str


class Deployment:
    """Cells and doors. An object is used for one run."""

    def __init__(
        self,
        plans: Sequence[CellPlan],
        clients: Sequence[redis.Redis],
        directory: Directory,
        seconds: int,
        *,
        spills: frozenset[str] = SPILLS,
        changes: Sequence[Change] = (),
    ) -> None:
        """Each cell has the store of one client. `changes` are those that operators make to the directory."""
        self._cells = {plan.name: Cell(plan, client, seconds) for plan, client in zip(plans, clients, strict=True)}
        self._plans = {plan.name: plan for plan in plans}
        self._doors, self._seconds, self._spills = Doors(directory), seconds, spills
        self._changes = sorted(changes, key=lambda change: change[0])
        self._mail: list[Mail] = []
        self._request_of: dict[SimJob, Request] = {}
        self._arriving: dict[str, list[SimJob]] = {}

    def run(self, requests: Sequence[Request]) -> Deployed:
        """Run until the end. `requests` are sorted by time, and each has at most one job in a cell at its end."""
        coming = iter(requests)
        following = next(coming, None)
        for second in range(self._seconds):
            begin_ms, end_ms = second * BARRIER_MS, (second + 1) * BARRIER_MS
            self._meet(begin_ms)
            self._arriving = {name: [] for name in self._cells}
            self._deliver_mail()
            while following is not None and following.job.at_ms < end_ms:
                self._receive(following)
                following = next(coming, None)
            for name, cell in self._cells.items():
                cell.offer(self._arriving[name])
                for job in cell.advance(end_ms):
                    self._refused(name, job)
        runs = {name: cell.finish() for name, cell in self._cells.items()}
        return Deployed(list(requests), self._cells, runs, self._doors.directory)

    def _meet(self, now_ms: float) -> None:
        """Tell the doors what was found out until now."""
        directory = self._doors.directory
        while self._changes and self._changes[0][0] <= now_ms:
            directory = self._changes.pop(0)[1](directory)
        self._doors.learn(directory, frozenset(name for name, plan in self._plans.items() if plan.is_lost(now_ms)))

    def _receive(self, request: Request) -> None:
        """Offer a request that a door has just received to its first cell."""
        if request.reason:
            return
        first, *_ = self._doors.cells_of(request.job.tenant, request.region)
        if self._plans[first].is_lost(request.job.at_ms):
            request.reason = Refusal.STORE_UNAVAILABLE.value
            self._spill(request, first, request.job.at_ms)
        else:
            self._offer(request, first, request.job.at_ms)

    def _offer(self, request: Request, cell: str, at_ms: float) -> None:
        job = replace(request.job, at_ms=at_ms)
        request.offers.append((cell, job))
        self._request_of[job] = request
        self._arriving[cell].append(job)

    def _refused(self, cell: str, job: SimJob) -> None:
        request = self._request_of[job]
        request.reason = request.reason or job.refusal
        if not request.spilled and job.refusal in self._spills:
            self._spill(request, cell, job.sent_ms)

    def _spill(self, request: Request, cell: str, at_ms: float) -> None:
        other = next((one for one in self._doors.cells_of(request.job.tenant, request.region) if one != cell), None)
        if other is not None:
            request.spilled = True
            self._mail.append(Mail(at_ms + BARRIER_MS, request, other))

    def _deliver_mail(self) -> None:
        mail, self._mail = self._mail, []
        for letter in mail:
            if not self._plans[letter.cell].is_lost(letter.at_ms):
                self._offer(letter.request, letter.cell, letter.at_ms)


@contextmanager
def stores(count: int) -> Iterator[list[redis.Redis]]:
    """Start one embedded store for each cell, and yield a client of each."""
    with ExitStack() as stack:
        yield [stack.enter_context(private_store()) for _ in range(count)]
