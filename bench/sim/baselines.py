"""What others do, in the same simulation over the same workers: B1, B3, B4 and B5 of docs/overload.md.

B1  plain RQ: one job a worker at a time, first in first out, no bound; nobody looks at deadlines.
B3  our engine behind a first-in-first-out queue without a bound; nobody looks at deadlines.
B3d B3 whose engine stops what is late, and drops it when it comes out of the queue.
B4  first in first out with a bound on what is inflight, 503 beyond; the engine stops what is late.
B5  round robin across tenants with a bare counter of what is inflight, 503 beyond; the same engine.

The bound of B4 and B5 is ours: 4 x the slots. Their 503 says `Retry-After: 1`.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Several

from bench.sim.asks import TAKEN, Answer, Ask
from bench.sim.fleet import Machine, Sequence, SimWorker
from bench.sim.simulation import fleet
from bench.sim.system import Grant


class Queue:
    """A queue in memory. `bound`: most jobs inflight, None for none."""

    def __init__(self, name: str, *, bound: int | None, round_robin: bool, drops_late: bool) -> None:
        self.name = name
        self._bound, self._drops_late = bound, drops_late
        #: One list for all, or one a tenant.
        self._round_robin = round_robin
        self._lists: dict[str, deque[Ask]] = {}
        self._turns: deque[str] = deque()
        self._inflight = 0
        self._running: set[Ask] = set()
        self._waits = 0

    def offer(self, ask: Ask, now_ms: float, then: Callable[[Answer], None]) -> None:  # noqa: ARG002 - a System's names
        """Refuse at the bound."""
        then(self._offer(ask))

    def catch_up(self) -> None:
        """Everything is answered at once."""

    def _offer(self, ask: Ask) -> Answer:
        if self._bound is not None and self._inflight >= self._bound:
            return Answer(taken=False, reason="inflight_full", hint_ms=1_000)
        name = ask.tenant if self._round_robin else ""
        line = self._lists.setdefault(name, deque())
        if not line:
            self._turns.append(name)
        line.append(ask)
        self._inflight += 1
        self._waits += 1
        return TAKEN

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """The next in line, or the next tenant's next."""
        grants: list[Grant] = []
        cells = worker.cells_free
        while len(grants) < worker.room and self._turns:
            name = self._turns[0]
            ask = self._lists[name][0]
            late = self._drops_late and now_ms >= ask.deadline_at_ms
            needs = ask.prompt + ask.max_tokens
            if needs > cells and not late and not ask.outcome:
                break
            self._lists[name].popleft()
            self._turns.popleft()
            self._waits -= 1
            if self._lists[name]:
                self._turns.append(name)
            if ask.outcome:
                continue
            if late:
                ask.outcome = "expired"
                self._inflight -= 1
                continue
            cells -= needs
            self._running.add(ask)
            grants.append(Grant(ask, "", ask.deadline_at_ms))
        return grants

    def settle(
        self,
        worker: SimWorker,  # noqa: ARG002 - a System's names
        seq: Sequence,
        outcome: str,
        now_ms: float,  # noqa: ARG002 - a System's names
        then: Callable[[str], None],
    ) -> None:
        """As the engine says."""
        self._running.discard(seq.ask)
        self._inflight -= 1
        then(outcome)

    def leave(self, ask: Ask, now_ms: float) -> bool:  # noqa: ARG002 - a System's names
        """What waits is skipped when its turn comes; what runs is stopped if the engine can."""
        if ask in self._running:
            return self._drops_late
        if ask.admitted_ms is not None and not ask.outcome and self._drops_late:
            ask.outcome = "canceled"
            self._inflight -= 1
        return False

    def beat(self, worker: SimWorker, now_ms: float) -> Several[Ask]:  # noqa: ARG002 - a System's names
        """Nobody listens."""
        return ()

    def reap(self, now_ms: float) -> bool:  # noqa: ARG002 - a System's names
        """Nobody reaps."""
        return False

    def waiting(self) -> int:
        """Jobs that wait."""
        return self._waits

    def close(self, asks: Several[Ask]) -> None:
        """What still waits has no outcome."""


def baseline(name: str, workers: int, machine: Machine) -> tuple[Queue, list[SimWorker]]:
    """One of the baselines and its fleet."""
    if name == "B1":
        alone = Machine(**(vars(machine) | {"slots": 1}))
        return Queue(name, bound=None, round_robin=False, drops_late=False), fleet(
            workers, alone, heeds_deadlines=False
        )
    bound = None if name in {"B3", "B3d"} else 4 * workers * machine.slots
    aware = name != "B3"
    return (
        Queue(name, bound=bound, round_robin=name == "B5", drops_late=aware),
        fleet(workers, machine, heeds_deadlines=aware),
    )
