"""What goes into the engine and what it reports: plain values, no behaviour."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.jobs.job import Usage


@dataclass(frozen=True)
class JobSpec:
    """One job as handed to the engine."""

    #: `<id>:<claim token>`.
    key: str
    tenant: str
    #: `prompt` or `messages`, sampling parameters, `stop`, `response_format`; see docs/http.md. `max_tokens`
    #: where the client named one: without it the answer is cut to the context, with it the job is rejected.
    payload: dict[str, Any]
    max_tokens: int
    #: Moments of the engine's clock, in seconds.
    deadline_s: float
    start_by_s: float | None = None


class JobRejected(Exception):
    """The job cannot run as asked: its own fault, nothing was computed.

    `code` is an EndCode value (`context_length_exceeded`, `invalid_value`), `param` the field at fault.
    """

    def __init__(self, code: str, message: str, param: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


class Text(NamedTuple):
    """New text of one sequence: whole UTF-8, past any possible beginning of a stop string."""

    key: str
    text: str
    #: Tokens generated so far, this text's included.
    completion_tokens: int


@dataclass(frozen=True)
class Ended:
    """The last event of a sequence. `text` is the whole answer."""

    key: str
    #: An Outcome value, or one that nobody settles: DROPPED, RETURNED.
    outcome: str
    finish_reason: str
    text: str
    usage: Usage
    #: EndCode value, stage (`prefill`, `decode`) and sentence for what did not succeed.
    code: str = ""
    stage: str = ""
    message: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


Event = Text | Ended

#: Outcomes that nobody settles: of a sequence whose lease was lost or whose engine stops, and of one that was
#: asked back before it had a slot.
DROPPED, RETURNED = "dropped", "returned"


@dataclass(frozen=True)
class FreeCapacity:
    """What the engine could take in now: slots that are free, and of those in use how many will be in a few steps."""

    slots: int
    cells: int
    soon: int = 0
