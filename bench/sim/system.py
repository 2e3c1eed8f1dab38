"""What the simulation needs of a queue between clients and workers; ours and each baseline is one."""

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Protocol

from bench.sim.asks import Answer, Ask
from bench.sim.fleet import Sequence, SimWorker


@dataclass(frozen=True, slots=True)
class Grant:
    """A job that a worker may run. Moments are ms of virtual time."""

    ask: Ask
    token: str
    deadline_at_ms: float
    start_by_ms: float | None = None


class System(Protocol):
    """A queue. Every call happens at `now_ms`, which never goes back."""

    name: str

    def offer(self, ask: Ask, now_ms: float, then: Callable[[Answer], None]) -> None:
        """A client sends its job. `then` is called with the answer, at the latest in `catch_up`."""

    def catch_up(self) -> None:
        """Have everything answered that was asked so far."""

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """Jobs for the worker's free slots."""

    def settle(
        self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float, then: Callable[[str], None]
    ) -> None:
        """A job has ended in the engine. `then` hears the last word on it, "" when the job was lost."""

    def leave(self, ask: Ask, now_ms: float) -> bool:
        """The client is gone and has said so; whether a worker must be told."""

    def beat(self, worker: SimWorker, now_ms: float) -> Several[Ask]:
        """A heartbeat; the jobs that the worker must stop."""

    def reap(self, now_ms: float) -> bool:
        """The periodic duty; whether jobs came back to the queue."""

    def waiting(self) -> int:
        """Jobs that wait."""

    def close(self, asks: Several[Ask]) -> None:
        """After the run: outcomes of the asks that ended without a settle."""
