"""The jobs that the engine receives and the events that it emits, as plain values without behaviour."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.jobs.job import ClaimRef, Usage


@dataclass(frozen=True)
class JobSpec:
    """One job, as the worker passes it to the engine."""

    #: The claim under which the worker holds the job. Two attempts of one job have different keys.
    key: ClaimRef
    tenant: str
    #: The fields of the request: `prompt` or `messages`, sampling parameters, `stop`, `response_format` and others; see
    #: docs/http.md. `max_tokens` is among them only if the client sent it. If the client did not, the engine shortens
    #: the answer to fit the context; otherwise it rejects a job that does not fit.
    payload: dict[str, Any]
    max_tokens: int
    #: The deadline and the start deadline, as times in seconds on the engine's clock.
    deadline_s: float
    start_by_s: float | None = None
    #: The number of this attempt, from 1.
    attempt: int = 1
    #: The trace of the request that led to the job, as W3C's `traceparent`, or "".
    traceparent: str = ""
    #: The tokens that earlier attempts generated. The answer continues after them; no Text event repeats their text.
    answer: tuple[int, ...] = ()
    #: The LoRA adapter of the model that computes the job; "" for the model itself.
    adapter: str = ""


class JobRejected(Exception):
    """The job cannot run, because its request is invalid. No token was computed for it.

    `code` is an EndCode value (`context_length_exceeded`, `invalid_value`, `unsupported_parameter`). `param` names the
    invalid field. `helper_cpu_s` is the CPU time that another process spent to find this out.
    """

    def __init__(self, code: str, message: str, param: str = "", *, helper_cpu_s: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.helper_cpu_s = code, message, param, helper_cpu_s


class Text(NamedTuple):
    """New text of one sequence. It consists of whole characters, and none of them can be part of a stop string.

    The text is empty if many tokens were generated and all their text is held back.
    """

    key: ClaimRef
    text: str
    #: Number of tokens generated so far, including those of this text.
    completion_tokens: int
    #: CPU time that the answer's grammar has taken so far.
    grammar_cpu_s: float = 0.0
    #: The tokens generated since the last event. An answer that continues after them begins with all text shown so far.
    tokens: tuple[int, ...] = ()
    #: Whether this is text that was held back until the answer ended. An answer that continues would repeat it.
    is_last: bool = False


@dataclass(frozen=True)
class Ended:
    """The last event of a sequence. `text` is the whole answer."""

    key: ClaimRef
    #: An Outcome value, or else DROPPED, RETURNED or ATTEMPT_FAILED: then the worker does not settle the job.
    outcome: str
    finish_reason: str
    text: str
    usage: Usage
    #: The next three fields tell why the sequence did not succeed: an EndCode value, the stage in which it ended
    #: (`prefill` or `decode`), and a message. All three are "" if it succeeded, was dropped or was returned; but the
    #: message of a job that was returned says why the upstream has refused it, if it has.
    code: str = ""
    stage: str = ""
    message: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    #: CPU time that the answer's grammar took.
    grammar_cpu_s: float = 0.0
    #: How long a job that goes back to its queue must wait there.
    wait_s: float = 0.0


Event = Text | Ended

#: The worker does not settle a job that ends with one of these outcomes. DROPPED: the job's lease was lost, or the
#: engine stopped; the worker gives up the lease. RETURNED: the worker recalled the job while it had no slot, or the
#: upstream did not take it; the worker releases it, and the attempt does not count. ATTEMPT_FAILED: the upstream failed
#: in the middle of the job; the worker releases it, and the attempt counts.
DROPPED, RETURNED, ATTEMPT_FAILED = "dropped", "returned", "attempt_failed"


@dataclass(frozen=True)
class FreeCapacity:
    """The engine's capacity for further jobs now."""

    #: Number of slots that are not reserved for a submitted job.
    slots: int
    #: Number of KV cells that are not reserved for a submitted job.
    cells: int
    #: Number of slots in use that are about to become free and for which the worker may prefetch a job now.
    slots_ending_soon: int = 0
    #: Whether the worker counts as live. False while an upstream does not answer.
    live: bool = True
    #: The tenants whose queued jobs the worker must not claim now, because an upstream does not take their requests.
    aside: tuple[str, ...] = ()
    #: Whether several jobs on their last attempt may run at once. If not, one that kills the worker ends no other job.
    trusts_last_attempts: bool = False

    def kv_used(self, cells: int) -> float:
        """Return the share of the worker's `cells` that is reserved. An engine that keeps no cells has more free."""
        return max(0.0, 1 - self.cells / cells)
