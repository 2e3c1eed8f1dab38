"""Models of the response bodies, used for /openapi.json and by the tests, which validate responses with them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.store_fault import StoreFault


class ResponseModel(BaseModel):
    """Base class of the models: a response must not contain fields that its model does not define."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class ErrorInfo(ResponseModel):
    """The description of an error."""

    message: str
    type: str
    param: str | None = Field(description="the name of the invalid field, header or parameter")
    code: str
    errors: list[dict[str, str]] = Field(default=[], description="all invalid fields, if there are several")
    details: dict[str, str] | None = Field(None, description="error_code: the word of another API for this error")


class Error(ResponseModel):
    """The body of every response that is neither a success nor a refusal."""

    error: ErrorInfo
    limits: dict[str, str | int] | None = Field(None, description="limit, value and max of a bound that was reached")


class Limits(ResponseModel):
    """The bound that the job would exceed. While the store does not answer, inflight and max_inflight are null."""

    limit: str
    value: int
    max: int
    inflight: int | None
    max_inflight: int | None
    resets_at: str | None = Field(None, description="when the exhausted budget begins anew (UTC); absent otherwise")


class Yield(ResponseModel):
    """The response to a refused job: nothing of the request was kept; retry after the hint."""

    status: Literal["yield"]
    retry_hint_ms: int | None = Field(description="null if no retry can succeed: even an idle system is too slow")
    reason: str
    error: ErrorInfo
    limits: Limits
    store_fault: StoreFault | None = Field(None, description="with `store_unavailable`, why the store cannot serve")
    return_ticket: str | None = Field(
        None, description="send it with the retry; absent if the client is not asked to retry, or is not expected"
    )
    return_window_ms: int | None = Field(
        None, description="ms after the hint's end for which the ticket puts the retry before new requests"
    )


class Patience(ResponseModel):
    """The job's deadline, in ms after the job was submitted, and the source of this value."""

    deadline_ms: int
    from_: Literal["body", "header", "default"] = Field(alias="from")


class Queue(ResponseModel):
    """The place in the queue of a job that has not ended, and when to poll the job again."""

    position: int | None = Field(description="the place in its tenant's queue, 1 for the next job; null while it runs")
    ahead_tokens: int | None
    eta_ms: int | None = Field(description="ms until the predicted end; null while the workers' rates are unknown")
    poll_after_ms: int


class Waited(ResponseModel):
    """How long the job waited, in ms, by reason."""

    own_ms: int = Field(description="behind other jobs of its own tenant")
    turn_ms: int = Field(description="as the first in its queue, while other tenants had turns or no slot was free")
    paused_ms: int = Field(description="on its worker, which ran another tenant's job meanwhile")
    requeued_ms: int = Field(description="in the queue again after its worker was lost or drained")


class Usage(ResponseModel):
    """The engine's token counts, and times in ms; a time is null if the job ended before it could be measured."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_ms: int | None = Field(description="from admission to the first claim")
    start_ms: int | None = Field(
        description="from the last claim to the first step: the prompt is prepared, and an idle engine waits for more "
        "jobs (PENSTOCK_BATCH_TIMEOUT_MS)"
    )
    prefill_ms: int | None
    decode_ms: int | None
    ttft_ms: int | None = Field(description="from admission to the first token")


class LikelyToken(ResponseModel):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(LikelyToken):
    """A token of the answer, with the most likely alternatives to it."""

    top_logprobs: list[LikelyToken]


class JobError(ResponseModel):
    """Why an ended job did not succeed."""

    code: str
    message: str
    stage: Literal["queue", "prefill", "decode"] | None


class Urls(ResponseModel):
    """The paths of the job's routes."""

    self: str
    cancel: str
    events: str
    events_signed: str = Field(default="", description="the events without a key; present if `ticket` was requested")


class Routed(ResponseModel):
    """How a job of a route got into its pool: the pool, by the name of its model, and why it is there."""

    pool: str
    why: str


class JobCandidate(ResponseModel):
    """One of several answers of a job."""

    index: int
    text: str
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "deadline", "canceled"] | None
    mean_logprob: float | None = Field(description="of the answer's tokens; null if the answer has none")
    logprobs: list[TokenLogprob] | None = Field(description="null if the request did not ask for logprobs")


class Citation(ResponseModel):
    """A passage of the prompt; the first one has the number 1 there."""

    document: str
    chunk: int = Field(description="the place of the chunk in its document, from 0")
    score: float = Field(description="how well it matches the query; comparable within one answer only")


class Job(ResponseModel):
    """One job. Times are in seconds since the epoch, by the store's clock."""

    id: str
    object: Literal["job"]
    tenant: str
    model: str
    status: Literal["queued", "running", "succeeded", "failed", "canceled", "expired"]
    created_at: float
    deadline_at: float
    started_at: float | None
    ended_at: float | None
    attempts: int
    priority: int = Field(description="-1 for batch work, 0 or 1")
    cancel_requested: bool
    patience: Patience
    queue: Queue | None
    waited: Waited
    text: str | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "deadline", "canceled"] | None
    usage: Usage | None
    logprobs: list[TokenLogprob] | None = Field(description="null if the request did not ask for logprobs")
    error: JobError | None
    metadata: dict[str, str]
    urls: Urls
    candidates: list[JobCandidate] = Field(default=[], description="all answers, if the request picked `all`")
    routed: Routed | None = Field(default=None, description="present if the request named a route")
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut or left out")
    citations: list[Citation] = Field(
        default=[], description="the passages in the prompt, if `retrieval` was asked for"
    )
    webhook: dict[str, str | int] = Field(default={}, description="where the end is told, and what became of that")


class JobPage(ResponseModel):
    """One page of a tenant's jobs, newest first."""

    object: Literal["list"]
    data: list[Job]
    cursor: str | None = Field(description="send this to get the next page; null on the last page")
    has_more: bool


class OwnQueue(ResponseModel):
    """The bounds of a tenant's queue, how many jobs the tenant has, and how many are inflight in the whole system.

    `max_waiting_tokens` is null if the expected work is bounded instead of the tokens.
    """

    object: Literal["queue"]
    tenant: str
    waiting: int
    waiting_tokens: int
    running: int
    max_waiting: int
    max_waiting_tokens: int | None
    weight: float
    max_deadline_ms: int
    inflight: int
    max_inflight: int
    draining: bool


class TokenBudget(ResponseModel):
    """A budget of the tenant or its group, and the part used now."""

    kind: Literal["tenant", "group"]
    name: str
    period: Literal["day", "month"]
    max_tokens: int
    counted_tokens: int = Field(description="of jobs that ended in the period")
    reserved_tokens: int = Field(description="the most that the inflight jobs can use")
    left_tokens: int
    resets_at: str = Field(description="when the budget begins anew (UTC)")


class UsageReport(ResponseModel):
    """The usage from the first to the last day, both UTC and included."""

    object: Literal["usage"]
    tenant: str | None = Field(description="null for the sums of all tenants")
    from_: str = Field(alias="from")
    to: str
    data: list[dict[str, int | str]] = Field(description="for each value of the dimensions: jobs and tokens")
    budgets: list[TokenBudget] = Field(description="the tenant's budgets and those of its group, or all budgets")


class Quote(ResponseModel):
    """The predicted cost, end and verdict of a job that is not submitted. Nothing is reserved."""

    object: Literal["quote"]
    tenant: str
    model: str
    prompt_tokens: int = Field(description="the door's estimate; the exact number is in the job's `usage`")
    max_tokens: int
    cost_mwt: int = Field(description="in thousandths of a weighted token (the cost of an uncached prompt token)")
    max_cost_micro: int = Field(description="the most it can cost, in millionths of the currency; 0 without prices")
    eta_ms: int | None = Field(description="ms until the answer would be complete; null while rates are unknown")
    eta_early_ms: int | None = Field(description="one in ten such jobs is predicted to end sooner than this")
    eta_late_ms: int | None = Field(description="one in ten such jobs is predicted to end later than this")
    verdict: Literal["admitted", "yield"]
    refusal: Yield | None = Field(description="the yield that the job would get; null if it would be admitted")
    routed: Routed | None = Field(default=None, description="present if a pool of the named route would admit the job")


class Ready(ResponseModel):
    """Whether a job could be admitted now."""

    status: Literal["ready", "not_ready"]
    reason: str | None
    workers: int
    store_fault: StoreFault | None = Field(None, description="with `store_unavailable`, why the store cannot serve")
    model: str | None = Field(None, description="the model of the request, whose `reason` and `workers` these are")


class Health(ResponseModel):
    """The response to `GET /health`, which every running process gives."""

    status: Literal["ok"]
    version: str


class Collection(ResponseModel):
    """A tenant's named set of documents."""

    object: Literal["collection"]
    name: str
    vector_store_id: str = Field(description="the id under which OpenAI's routes of vector stores know it")
    title: str | None = Field(description="the name of the vector store, if it was created as one")
    model: str | None = Field(description="the embedding model; null if words alone are searched")
    dimensions: int | None
    language: str
    chunk_tokens: int
    overlap_tokens: int
    documents: int
    chunks: int
    text_bytes: int
    version: int = Field(description="grows with each change of the documents")
    created_at: float
    loaded_at: float | None


class CollectionList(ResponseModel):
    """All collections of a tenant."""

    object: Literal["list"]
    data: list[Collection]


class CollectionDeleted(ResponseModel):
    """The answer to the deletion of a collection."""

    object: Literal["collection.deleted"]
    name: str
    deleted: bool


class CollectionDocument(ResponseModel):
    """A document of a collection, without its text."""

    object: Literal["collection.document"]
    id: str
    metadata: dict[str, str | float | bool | list[str]]
    text_bytes: int
    chunks: int
    digest: str
    loaded_at: float


class LoadedDocument(CollectionDocument):
    """A document after its load."""

    unchanged: bool = Field(description="whether it was the same before, so that nothing was embedded")


class CollectionDocumentList(ResponseModel):
    """One page of a collection's documents."""

    object: Literal["list"]
    data: list[CollectionDocument]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CollectionDocumentDeleted(ResponseModel):
    """The answer to the deletion of a document."""

    object: Literal["collection.document.deleted"]
    id: str
    deleted: bool


class FoundPassage(ResponseModel):
    """A chunk that was found for a query."""

    document_id: str
    ordinal: int = Field(description="the place of the chunk in its document, from 0")
    text: str
    tokens: int
    score: float
    metadata: dict[str, str | float | bool | list[str]]


class FoundPassages(ResponseModel):
    """The passages for a query, the best first."""

    object: Literal["list"]
    data: list[FoundPassage]
    omitted: list[Literal["rerank", "vector", "words"]] = Field(description="the parts for which there was no time")
    version: int = Field(description="the version of the collection that was searched")
    took_ms: int
