"""The bodies that the door answers, as models: for /openapi.json, and for the tests that hold answers to them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ResponseModel(BaseModel):
    """Base: nothing is left out, nothing is added unseen."""

    model_config = ConfigDict(extra="forbid")


class ErrorInfo(ResponseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(description="the field at fault")
    code: str
    errors: list[dict[str, str]] = Field(default=[], description="every field at fault, where there are several")


class Error(ResponseModel):
    """Every answer that is neither a success nor a refusal."""

    error: ErrorInfo


class Limits(ResponseModel):
    """The bound that was hit; null while the store is away."""

    limit: str
    value: int
    max: int
    inflight: int | None
    max_inflight: int | None


class Yield(ResponseModel):
    """A refusal: nothing was kept, come back after the hint."""

    status: Literal["yield"]
    retry_hint_ms: int | None = Field(description="null: not even an idle system could; the same request is no use")
    reason: str
    error: ErrorInfo
    limits: Limits


class Patience(ResponseModel):
    """How long the client waits, and where it said so."""

    deadline_ms: int
    from_: Literal["body", "header", "default"] = Field(alias="from")


class Queue(ResponseModel):
    """Where a job stands that has not ended."""

    position: int | None = Field(description="place in the tenant's own list, 1 is next; null while running")
    ahead_tokens: int | None
    eta_ms: int | None = Field(description="null while rates are unknown")
    poll_after_ms: int


class Waited(ResponseModel):
    """Why the job waited, in ms."""

    own_ms: int = Field(description="behind jobs of its own tenant")
    turn_ms: int = Field(description="at the head of its list: other tenants' turns, or no free slot")
    requeued_ms: int = Field(description="again, after its worker was lost or drained")


class Usage(ResponseModel):
    """True counts; times in ms, null where the job did not get that far."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_ms: int | None
    prefill_ms: int | None
    decode_ms: int | None
    ttft_ms: int | None = Field(description="from admission to the first token")


class LikelyToken(ResponseModel):
    """A token and the logarithm of how likely the model held it."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(LikelyToken):
    """A token of the answer."""

    top_logprobs: list[LikelyToken]


class JobError(ResponseModel):
    """Why an ended job did not succeed."""

    code: str
    message: str
    stage: Literal["queue", "prefill", "decode"] | None


class Urls(ResponseModel):
    """Where the job is."""

    self: str
    cancel: str
    events: str
    events_signed: str = Field(default="", description="events without a key, if the submit asked for a ticket")


class Job(ResponseModel):
    """One job. Moments in seconds since the epoch, by the store's clock."""

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
    cancel_requested: bool
    patience: Patience
    queue: Queue | None
    waited: Waited
    text: str | None
    finish_reason: Literal["stop", "length", "deadline", "canceled"] | None
    usage: Usage | None
    logprobs: list[TokenLogprob] | None = Field(description="null where none were asked for")
    error: JobError | None
    metadata: dict[str, str]
    urls: Urls
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut under pressure")


class JobPage(ResponseModel):
    """Some jobs, newest first."""

    object: Literal["list"]
    data: list[Job]
    cursor: str | None = Field(description="names the next page; null on the last")
    has_more: bool


class OwnQueue(ResponseModel):
    """A tenant's bounds and depth."""

    object: Literal["queue"]
    tenant: str
    waiting: int
    waiting_tokens: int
    running: int
    max_waiting: int
    max_waiting_tokens: int
    weight: float
    max_deadline_ms: int
    inflight: int
    max_inflight: int
    draining: bool


class Quote(ResponseModel):
    """What a job would cost, when it would end, and what the door would answer now. Promises nothing."""

    object: Literal["quote"]
    tenant: str
    model: str
    prompt_tokens: int = Field(description="as the door estimates them")
    max_tokens: int
    cost_mwt: int = Field(description="thousandths of a weighted token: the cost of an uncached prompt token is one")
    eta_ms: int | None = Field(description="until the answer; null while rates are unknown")
    verdict: Literal["admitted", "yield"]
    refusal: Yield | None = Field(description="the yield it would get")


class Model(ResponseModel):
    """A served name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseModel):
    """Live models."""

    object: Literal["list"]
    data: list[Model]


class Ready(ResponseModel):
    """Whether a job could be admitted."""

    status: Literal["ready", "not_ready"]
    reason: str | None
    workers: int


class Health(ResponseModel):
    """The process answers."""

    status: Literal["ok"]
    version: str


class QueueFacts(ResponseModel):
    """Where a job stands and why it waited; `queue` in `model_extra` of OpenAI's package."""

    position: int | None = Field(description="place in the tenant's own list, 1 is next; null when it does not wait")
    ahead_tokens: int | None
    eta_ms: int | None = Field(description="null while rates are unknown, and at the end")
    poll_after_ms: int | None = Field(description="null at the end")
    waited: Waited


class OpenAIUsage(ResponseModel):
    """Token counts as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class Completion(ResponseModel):
    """`chat.completion` or `text_completion`; OpenAI's own reference says what stands where."""

    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[dict[str, Any]]
    usage: OpenAIUsage
    queue: QueueFacts
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut under pressure")


class Response(ResponseModel):
    """A `response`; OpenAI's own reference says what stands where. The request's texts are not repeated."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    instructions: None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None
    temperature: float
    text: dict[str, Any] | None
    tool_choice: Literal["auto"]
    tools: list[dict[str, Any]] = Field(max_length=0)
    top_logprobs: int | None
    top_p: float
    truncation: Literal["disabled"]
    usage: dict[str, Any] | None
    queue: QueueFacts
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut under pressure")


class Embedding(ResponseModel):
    """The vector of one text: its numbers, or base64 of them as little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(ResponseModel):
    """The vectors, in the order of the texts; each of length 1."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: dict[str, int]


ALL: tuple[type[ResponseModel], ...] = (
    Error,
    Yield,
    Job,
    JobPage,
    Quote,
    OwnQueue,
    ModelList,
    Model,
    Ready,
    Health,
    Completion,
    Response,
    Embeddings,
)
