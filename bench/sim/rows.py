"""The common form of experiments: tasks that can run in parallel, and rows of the table that is printed at the end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.sim.yard import Basis

#: The figures of one task.
Figures = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One run: `function(basis, *key)` returns its figures. The key holds the varied parameters."""

    experiment: str
    key: tuple[Any, ...]
    function: Callable[..., Figures]

    def run(self, basis: Basis) -> Figures:
        """Run the task and return its figures."""
        return self.function(basis, *self.key)


@dataclass(frozen=True)
class Row:
    """One line of the table: the measured quantity, its target, and the results of Penstock and of the baselines."""

    experiment: str
    what: str
    target: str
    ours: str
    #: Whether Penstock meets the target; None if there is no target.
    met: bool | None
    baselines: dict[str, str] = field(default_factory=dict)


def at_least(value: float, bound: float) -> bool:
    """Return whether the value, rounded to three decimal places as it is printed, is at least the bound."""
    return round(value, 3) >= bound


def at_most(value: float, bound: float) -> bool:
    """Return whether the value, rounded to three decimal places as it is printed, is at most the bound."""
    return round(value, 3) <= bound
