"""The common form of experiments: tasks that may run side by side, and rows of the one table at the end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.sim.yard import Basis

#: The figures of one task.
Figures = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One run: `function(basis, *key)` answers its figures. The key says what is varied."""

    experiment: str
    key: tuple[Any, ...]
    function: Callable[..., Figures]

    def run(self, basis: Basis) -> Figures:
        """Do it."""
        return self.function(basis, *self.key)


@dataclass(frozen=True)
class Row:
    """One line of the table: what was asked for, what ours came to, what the baselines came to."""

    experiment: str
    what: str
    target: str
    ours: str
    met: bool | None
    baselines: dict[str, str] = field(default_factory=dict)


def at_least(value: float, bound: float) -> bool:
    """Met, with rounding to what is shown (three digits)."""
    return round(value, 3) >= bound


def at_most(value: float, bound: float) -> bool:
    """Met, with rounding to what is shown (three digits)."""
    return round(value, 3) <= bound
