"""The requests of one load scenario and their ends, counted by the people who sent them."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

#: How a question ended for the person: the whole answer in time; an answer that was cut at the deadline; given up after
#: refusals; left before the end, as planned; or an error that Penstock must not give.
Ending = Literal["answered", "cut", "gave_up", "left", "fault"]


@dataclass
class TenantLedger:
    """The questions of one tenant. Times are in ms from the moment at which the person asked first."""

    requests: int = 0
    refusals: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    first_token_ms: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    #: From each refused request to its refusal.
    refusal_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return the ledger as a JSON object."""
        return vars(self) | {"endings": dict(self.endings), "faults": dict(self.faults)}


def summary(ledger: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one tenant's ledger, as JSON has it."""
    endings = ledger["endings"]
    questions = sum(endings.values())
    stayed = questions - endings.get("left", 0)
    return {
        "questions": questions,
        "requests_per_question": ledger["requests"] / questions if questions else None,
        "refusals": ledger["refusals"],
        "left": endings.get("left", 0),
        "answered": endings.get("answered", 0),
        "answered_of_those_who_stayed": endings.get("answered", 0) / stayed if stayed else None,
        "gave_up": endings.get("gave_up", 0),
        "cut": endings.get("cut", 0),
        "faults": endings.get("fault", 0),
        "tokens": ledger["tokens"],
        **percentiles("first_token_ms", ledger["first_token_ms"], (50, 95)),
        **percentiles("answer_ms", ledger["answer_ms"], (50, 95)),
        **percentiles("refusal_ms", ledger["refusal_ms"], (99,)),
    }


def percentiles(name: str, values: Iterable[float], percents: Iterable[int]) -> dict[str, float | None]:
    """Return the percentiles of the values by nearest rank, named `<name>_p<percent>`; None if there are no values."""
    ordered = sorted(values)
    return {
        f"{name}_p{percent}": ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else None
        for percent in percents
    }
