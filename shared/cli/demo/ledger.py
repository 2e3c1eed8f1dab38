"""The clients' own ledger of the demo: each team's requests, and the door's answers.

Every figure that the demo shows comes from here. Nothing is read from the store or from Penstock's metrics.
"""

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

#: Before the flood; during the flood; and the end, when no client sends anymore and the last jobs are answered.
Phase = Literal["before_flood", "flood", "end"]


@dataclass(frozen=True)
class Team:
    """One tenant of the demo. Its clients wait `pause_s` after each answer; `flooders` send only during the flood."""

    name: str
    weight: float
    clients: int
    pause_s: float
    flooders: int = 0


@dataclass
class Figures:
    """The counts of one team's clients in one phase. A request counts in the phase in which it was sent."""

    sent: int = 0
    admitted: int = 0
    answered: int = 0
    #: Requests that were admitted and whose job ended without a complete answer, for example at its deadline.
    ended_early: int = 0
    #: Requests without an answer of Penstock's: no connection, a cut stream, an error that is not a refusal.
    faults: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    retry_hints_ms: list[int] = field(default_factory=list)
    first_tokens_ms: list[float] = field(default_factory=list)
    #: Generated tokens that arrived in this phase, whenever their request was sent.
    answer_tokens: int = 0


class Ledger:
    """The figures of all teams. Any thread may call the methods."""

    def __init__(self, teams: Sequence[Team]) -> None:
        self.teams = tuple(teams)
        self._lock = threading.Lock()
        self.phase: Phase = "before_flood"
        self._figures: dict[tuple[str, Phase], Figures] = {
            (team.name, phase): Figures() for team in teams for phase in ("before_flood", "flood", "end")
        }
        #: The last fault, as its client saw it, or "".
        self.last_fault = ""

    def enter(self, phase: Phase) -> None:
        with self._lock:
            self.phase = phase

    def sent(self, team: str) -> Figures:
        """Count a request that is about to be sent. Return the figures in which its outcome is to be counted."""
        with self._lock:
            figures = self._figures[team, self.phase]
            figures.sent += 1
            return figures

    def admitted(self, figures: Figures) -> None:
        with self._lock:
            figures.admitted += 1

    def refused(self, figures: Figures, reason: str, retry_hint_ms: int | None) -> None:
        """Count a refusal; None if it came without a retry hint."""
        with self._lock:
            figures.refused[reason] += 1
            if retry_hint_ms is not None:
                figures.retry_hints_ms.append(retry_hint_ms)

    def first_token(self, figures: Figures, after_ms: float) -> None:
        """Note when the first token arrived, in ms after the request was sent."""
        with self._lock:
            figures.first_tokens_ms.append(after_ms)

    def received(self, team: str, tokens: int) -> None:
        """Count generated tokens that arrived now."""
        with self._lock:
            self._figures[team, self.phase].answer_tokens += tokens

    def ended(self, figures: Figures, *, whole: bool) -> None:
        with self._lock:
            figures.answered += whole
            figures.ended_early += not whole

    def fault(self, figures: Figures, what: str) -> None:
        """Count a request that Penstock did not answer as it promises."""
        with self._lock:
            figures.faults += 1
            self.last_fault = what

    def faults(self) -> int:
        with self._lock:
            return sum(figures.faults for figures in self._figures.values())

    def summary(self, phase: Phase) -> list[dict[str, Any]]:
        """Return one row for each team with its figures of this phase, as the demo prints and exports them."""
        with self._lock:
            all_tokens = sum(self._figures[team.name, phase].answer_tokens for team in self.teams)
            return [_row(team, phase, self._figures[team.name, phase], all_tokens) for team in self.teams]


def _row(team: Team, phase: Phase, figures: Figures, all_tokens: int) -> dict[str, Any]:
    hints_ms = figures.retry_hints_ms
    return {
        "tenant": team.name,
        "weight": team.weight,
        "clients": team.clients + (team.flooders if phase == "flood" else 0),
        "sent": figures.sent,
        "admitted": figures.admitted,
        "answered": figures.answered,
        "ended_early": figures.ended_early,
        "faults": figures.faults,
        "refused": sum(figures.refused.values()),
        "reasons": dict(figures.refused),
        "retry_hint_ms": {"min": min(hints_ms), "max": max(hints_ms)} if hints_ms else None,
        "first_token_ms": {
            "p50": percentile(figures.first_tokens_ms, 50),
            "p95": percentile(figures.first_tokens_ms, 95),
        }
        if figures.first_tokens_ms
        else None,
        "answer_tokens": figures.answer_tokens,
        "share": figures.answer_tokens / all_tokens if all_tokens else None,
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that is at least as large as `percent` % of all (nearest rank), in their unit."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
