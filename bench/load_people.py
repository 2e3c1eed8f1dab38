"""The scenarios of the load by people: who asks, how often, how long each waits, and how each retries.

This module imports nothing of Locust, so that the program that starts Penstock and the tests can read the scenarios.
"""

from dataclasses import dataclass, field
from typing import Literal

#: Answers have this many tokens. The sim engine generates all of them; a real model may end earlier.
ANSWER_TOKENS = 40
#: How long a person waits for the whole answer, in seconds. It is also the deadline of the request.
PATIENCE_S = 10.0

#: `hint`: wait as long as a refusal says, and ask again while the patience lasts. `layered`: a client library that
#: makes three attempts and obeys hints, in a program that calls it up to six times with waits of its own.
Retries = Literal["hint", "layered"]


@dataclass(frozen=True)
class Group:
    """People (or programs) of one tenant. They think for `think_s` after each answer, uniformly distributed."""

    tenant: str
    people: int
    think_s: tuple[float, float]
    retries: Retries = "hint"
    #: The part of the requests whose client closes the connection after `leaves_after_s`.
    leave_part: float = 0.0
    leaves_after_s: float = 2.0
    #: When they come and go, as parts of the scenario's length.
    present: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Scenario:
    """Groups that ask at the same time, and a sentence that says what the scenario shows."""

    name: str
    shows: str
    groups: tuple[Group, ...] = field(default=())

    @property
    def people(self) -> int:
        """The number of people in all groups."""
        return sum(group.people for group in self.groups)


#: A person who reads an answer before asking again.
_THINK_S = (2.0, 6.0)
#: A program asks again at once.
_NO_THINK_S = (0.0, 0.1)
_GREEN, _BLUE = Group("green", 8, _THINK_S), Group("blue", 8, _THINK_S)

SCENARIOS = (
    Scenario(
        "baseline",
        "Three teams of eight people, about half of the worker's capacity.",
        (Group("red", 8, _THINK_S), _GREEN, _BLUE),
    ),
    Scenario(
        "burst",
        "80 more people of the team red come after a third of the time, and leave after two thirds.",
        (Group("red", 8, _THINK_S), Group("red", 80, _THINK_S, present=(1 / 3, 2 / 3)), _GREEN, _BLUE),
    ),
    Scenario(
        "noisy neighbour",
        "Programs of the team red keep 60 requests open: each asks the next question as soon as one has ended.",
        (Group("red", 60, _NO_THINK_S), _GREEN, _BLUE),
    ),
    Scenario(
        "leavers",
        "60 people of the team red ask, and three quarters of them close the connection after 2 s.",
        (Group("red", 60, (0.5, 1.5), leave_part=0.75), _GREEN, _BLUE),
    ),
    Scenario(
        "layered retries",
        "60 programs of the team red retry in two layers, up to 18 attempts for each question.",
        (Group("red", 60, _NO_THINK_S, retries="layered"), _GREEN, _BLUE),
    ),
)


def scenario_named(name: str) -> Scenario:
    """Return a scenario. Raises SystemExit with all names for an unknown one."""
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    raise SystemExit(f"unknown scenario {name!r}: choose one of {', '.join(one.name for one in SCENARIOS)}")
