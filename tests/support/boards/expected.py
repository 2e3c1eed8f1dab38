"""The expected values of each panel, by its board and title, from figures that do not come from Prometheus."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.support.processes import ROOT
from tests.support.prometheus import Labels

#: By how much a figure may differ from what is expected, as a part of it. `rate` extrapolates to the ends of its time,
#: so with two scrapes a second a time of 40 s is 1.25 % too long.
TOLERANCE = 0.02
BOARDS = ("overview", "tenant", "worker")

#: One number, or the least and the most that are right.
Number = float | tuple[float, float]


def of(**labels: str) -> Labels:
    """Return the labels of a series."""
    return tuple(sorted(labels.items()))


#: The labels of a figure without any.
ALL: Labels = ()


@dataclass(frozen=True)
class Expected:
    """The values of one query. A series that is not named has the value 0, or is missing."""

    by: Mapping[Labels, Number]
    #: Whether the query is a rate, and the values are by how much its counters grew.
    grows: bool = False

    def differences(
        self, shown: Mapping[Labels, float], tolerance: float = TOLERANCE
    ) -> dict[Labels, tuple[float, Number]]:
        """Return what is shown and what is expected of each series for which these differ by more than a part."""
        pairs = {labels: (shown.get(labels, 0.0), self.by.get(labels, 0.0)) for labels in (*shown, *self.by)}
        return {labels: pair for labels, pair in pairs.items() if not _agree(*pair, tolerance)}


def _agree(shown: float, expected: Number, tolerance: float) -> bool:
    low, high = expected if isinstance(expected, tuple) else (expected, expected)
    return low * (1 - tolerance) <= shown <= high * (1 + tolerance)


def growth(by: Mapping[Labels, Number]) -> Expected:
    """Return what is expected of a rate whose counters grew by so much."""
    return Expected(by, grows=True)


def value(number: Number) -> Expected:
    """Return what is expected of a query with one value without labels."""
    return Expected({ALL: number})


T = TypeVar("T")


class Comparisons(Generic[T]):
    """Functions that say what panels must show, given what is known of a situation."""

    def __init__(self) -> None:
        self.by_panel: dict[str, Callable[[T], list[Expected]]] = {}

    def of(self, panel: str) -> Callable[[Callable[[T], list[Expected]]], Callable[[T], list[Expected]]]:
        """Register a function for a panel, named as in `panels`. It returns what each query of the panel must show."""

        def register(function: Callable[[T], list[Expected]]) -> Callable[[T], list[Expected]]:
            assert panel not in self.by_panel, panel
            self.by_panel[panel] = function
            return function

        return register


def panels() -> dict[str, list[str]]:
    """Return the queries of all panels of all boards, by `<board>: <title>`."""
    found: dict[str, list[str]] = {}
    for board in BOARDS:
        content = json.loads((ROOT / "deploy" / "grafana" / "boards" / f"{board}.json").read_text(encoding="utf-8"))
        for panel in content["panels"]:
            name = f"{board}: {panel['title']}"
            assert name not in found, f"two panels are called {name!r}"
            found[name] = [target["expr"] for target in panel["targets"]]
    return found


def filled(expression: str, *, interval_s: int = 60, tenant: str = "red", instance: str = "") -> str:
    """Return an expression with Grafana's variables replaced."""
    for name, text in {"__rate_interval": f"{interval_s}s", "tenant": tenant, "instance": instance}.items():
        expression = expression.replace(f"${name}", text)
    assert "$" not in expression
    return expression


def with_range(expression: str, interval_s: int) -> str:
    """Return the expression of a rule with another time in place of those in its ranges."""
    return re.sub(r"\[\d+[ms]\]", f"[{interval_s}s]", expression)
