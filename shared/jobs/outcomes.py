"""Enums for the reasons of refusals and for how jobs end, and the type of a refusal.

The enums are closed sets. The values of Refusal and Outcome are also the values of metric labels.
"""

from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """The reason for which an offer is refused. The door answers a refused client with `yield`.

    To add a reason: add a member to this enum, a check to shared/lua/lib/admission/checks.lua, a message to
    web/api/refusals.py and a row to docs/fairness.md.
    """

    #: The whole system has reached its bound on inflight jobs.
    INFLIGHT_FULL = "inflight_full"
    #: The tenant has reached its bound on queued jobs.
    TENANT_QUEUE_FULL = "tenant_queue_full"
    #: With the offered job, the tenant's queued jobs would exceed its bound on tokens.
    TENANT_TOKENS_FULL = "tenant_tokens_full"
    #: With the offered job, the tenant's jobs would take more of the store's memory than they may.
    TENANT_BYTES_FULL = "tenant_bytes_full"
    #: With the offered job, the tenant's queued work would exceed its share of the work that may be queued.
    TENANT_SHARE_FULL = "tenant_share_full"
    #: The pool already has too much queued work, relative to the work that it can compute within PENSTOCK_MAX_WAIT_MS.
    BACKLOG_FULL = "backlog_full"
    #: The predicted end is too late for the deadline, or the predicted first token is too late for the start deadline.
    DEADLINE_UNMEETABLE = "deadline_unmeetable"
    #: The tenant has used up its own rate limit. The HTTP status is 429 instead of 503.
    RATE_LIMITED = "rate_limited"
    #: With the offered job, the tenant or its group could use more tokens than a budget allows; or the jobs of the pool
    #: have cost as much as they may on this day. The HTTP status is 429.
    BUDGET_EXHAUSTED = "budget_exhausted"
    #: No pool that the request may use takes such a request: it is private and no pool is local, or it does not meet a
    #: condition of each pool of its route. `limit` is the RouteReason.
    NO_SUITABLE_POOL = "no_suitable_pool"
    #: An operator is draining the system.
    DRAINING = "draining"
    #: No live worker serves this model.
    NO_WORKER = "no_worker"
    #: No worker holds the model, and loading it has failed; it is tried again after a pause.
    LOAD_FAILED = "load_failed"
    #: The store did not answer.
    STORE_UNAVAILABLE = "store_unavailable"


class Outcome(StrEnum):
    """How an admitted job ended. The values are the same as those of the terminal states in JobState."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


class FinishReason(StrEnum):
    """Why the generation of an answer stopped, as reported to clients."""

    STOP = "stop"
    LENGTH = "length"
    #: An upstream has cut the answer because of its contents.
    CONTENT_FILTER = "content_filter"
    DEADLINE = "deadline"
    CANCELED = "canceled"


class Stage(StrEnum):
    """The stage that a job had reached when it ended without success."""

    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"


class EndCode(StrEnum):
    """The `error.code` of a job that did not succeed."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    DEADLINE_UNMEETABLE = "deadline_unmeetable"
    CANCELED = "canceled"
    ABANDONED = "abandoned"
    SUPERSEDED = "superseded"
    #: The store's answer to the offer was lost. The client therefore received a yield, and the door canceled the job.
    UNHEARD = "unheard"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_VALUE = "invalid_value"
    #: The request is valid, but asks for something that the worker does not support, such as a keyword of a schema.
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    POISON = "poison"
    CORRUPT = "corrupt"
    ENGINE_ERROR = "engine_error"
    #: The job waited for a model that could not be loaded.
    LOAD_FAILED = "load_failed"
    #: The job is private, and its pool is no longer marked as local.
    NOT_LOCAL = "not_local"
    #: The server to which the worker passes its jobs did not accept the request.
    UPSTREAM_REJECTED = "upstream_rejected"
    #: That server has refused the job, mostly because it was busy, until the job's time or its bound on tries was over.
    UPSTREAM_BUSY = "upstream_busy"
    #: That server makes no embeddings with the model.
    EMBEDDINGS_UNSUPPORTED = "embeddings_unsupported"
    #: That server failed in the middle of the answer: on the last attempt, or after a part of the text was shown.
    UPSTREAM_LOST = "upstream_lost"


@dataclass(frozen=True)
class Refused:
    """The verdict for an offer that was refused. The store has kept nothing of the offered job."""

    reason: Refusal
    #: The name of the quantity whose bound caused the refusal; `value` is its current value, and `max` is the bound.
    limit: str
    value: int
    max: int
    inflight: int
    max_inflight: int
    #: The time in ms after which a retry is likely to be admitted.
    retry_hint_ms: int
    #: Whether not even an idle system could meet the deadline. If true, retrying the same request is useless.
    hopeless: bool = False
    #: The predicted time to compute the prompt and an answer of median length without waiting, in ms; None if the
    #: pool's rates are unknown.
    answer_ms: int | None = None
    #: Whether the wait is longer than the longest hint. If true, the hint is only the earliest time for a new request.
    too_long: bool = False
    #: When the client is expected again, in ms since the epoch by the store's clock, and for how long, in ms. They are
    #: 0 if it is not expected.
    retry_ms: int = 0
    return_window_ms: int = 0
    #: When the budget that is exhausted begins anew, in ms since the epoch by the store's clock; 0 if none is.
    resets_ms: int = 0
    #: The shortest and the longest hint in ms that any request of the tenant to this pool would have got; None if the
    #: verdict or the hint depends on the request.
    shared_hints_ms: tuple[int, int] | None = None
