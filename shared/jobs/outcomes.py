"""Closed enums for the door's answers and for how jobs end; each value is also a metric label."""

from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """Why the door answered `yield`. A refusal is a value, never an exception.

    When you add one: place its check in shared/lua/lib/verdict.lua, its sentence in web/api/refusals.py and
    its row in docs/fairness.md.
    """

    #: The whole system holds as many admitted jobs as it may.
    INFLIGHT_FULL = "inflight_full"
    #: The tenant has as many jobs waiting as it may.
    TENANT_QUEUE_FULL = "tenant_queue_full"
    #: The tenant's waiting jobs hold as many tokens as they may.
    TENANT_TOKENS_FULL = "tenant_tokens_full"
    #: The tenant waits with more than its share of what may wait.
    TENANT_SHARE_FULL = "tenant_share_full"
    #: More work waits than the pool does in the longest allowed wait.
    BACKLOG_FULL = "backlog_full"
    #: The answer could not be ready in time.
    DEADLINE_UNMEETABLE = "deadline_unmeetable"
    #: The tenant's own rate is used up (429 rather than 503).
    RATE_LIMITED = "rate_limited"
    #: An operator drains the system.
    DRAINING = "draining"
    #: No live worker serves this model.
    NO_WORKER = "no_worker"
    #: The store did not answer.
    STORE_UNAVAILABLE = "store_unavailable"


class Outcome(StrEnum):
    """How an admitted job ended. Equal to the terminal job states by construction."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


class FinishReason(StrEnum):
    """Why generation stopped, as clients see it."""

    STOP = "stop"
    LENGTH = "length"
    DEADLINE = "deadline"
    CANCELED = "canceled"


class Stage(StrEnum):
    """How far an expired job had come."""

    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"


class EndCode(StrEnum):
    """`error.code` of a job that did not succeed."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    DEADLINE_UNMEETABLE = "deadline_unmeetable"
    CANCELED = "canceled"
    ABANDONED = "abandoned"
    SUPERSEDED = "superseded"
    #: Whoever submitted it never heard that it was taken, and was told to come back.
    UNHEARD = "unheard"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_VALUE = "invalid_value"
    POISON = "poison"
    CORRUPT = "corrupt"
    ENGINE_ERROR = "engine_error"


@dataclass(frozen=True)
class Refused:
    """The job is not taken and nothing of it is left in the store."""

    reason: Refusal
    #: The bound that was hit, what it stands at and its maximum.
    limit: str
    value: int
    max: int
    inflight: int
    max_inflight: int
    #: Never less than the time after which coming back makes sense, in ms.
    retry_hint_ms: int
    #: Even an empty system could not: there is no use in coming back with the same request.
    hopeless: bool = False
    #: What prompt and median answer take by themselves, in ms; None while rates are unknown.
    answer_ms: int | None = None
