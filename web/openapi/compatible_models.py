"""Models of the response bodies of OpenAI's and Anthropic's routes, as those in web/openapi/response_models.py."""

from typing import Any, Literal

from pydantic import Field

from web.openapi.response_models import Citation, Error, ResponseModel, Waited, Yield


class Page(ResponseModel):
    """One page of a list."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class QueueFacts(ResponseModel):
    """A job's place in the queue and how long it waited; OpenAI's package returns this as `model_extra["queue"]`."""

    position: int | None = Field(description="the place in its tenant's queue, 1 for the next job; null if not queued")
    ahead_tokens: int | None
    eta_ms: int | None = Field(description="null while rates are unknown and after the job has ended")
    poll_after_ms: int | None = Field(description="null after the job has ended")
    waited: Waited


class OpenAIUsage(ResponseModel):
    """Token counts, with OpenAI's field names."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int] = Field(default={}, description="only if the answer has reasoning")


class Cached(ResponseModel):
    """From which earlier answer of the semantic cache an answer was taken."""

    similarity: float = Field(description="the cosine of the prompts' vectors; 1 for the same prompt")
    age_s: int = Field(description="how long ago the answer was generated")


class Completion(ResponseModel):
    """A `chat.completion` or `text_completion`; OpenAI's reference describes the fields."""

    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[dict[str, Any]]
    usage: OpenAIUsage
    queue: QueueFacts
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut or left out")
    citations: list[Citation] = Field(
        default=[], description="the passages in the prompt, if `retrieval` was asked for"
    )
    cached: Cached | None = Field(default=None, description="only if the answer comes from the semantic cache")


class Response(ResponseModel):
    """A `response`; OpenAI's reference describes the fields. The texts of the request are omitted."""

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
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    temperature: float
    text: dict[str, Any] | None
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int | None
    top_p: float
    truncation: Literal["disabled"]
    usage: dict[str, Any] | None
    queue: QueueFacts
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut or left out")
    citations: list[Citation] = Field(
        default=[], description="the passages in the prompt, if `retrieval` was asked for"
    )
    webhook: dict[str, str | int] = Field(default={}, description="where the end is told, and what became of that")


class Embedding(ResponseModel):
    """The vector of one input: a list of numbers, or little-endian float32 numbers in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(ResponseModel):
    """The vectors in the order of the inputs; each is normalized to length 1."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: dict[str, int]


class RankedText(ResponseModel):
    """The text of a document."""

    text: str


class RankedDocument(ResponseModel):
    """A document: its place in the request, from 0, and how well it answers the query, from 0 to 1."""

    index: int
    relevance_score: float
    document: RankedText | None = Field(None, description="present if `return_documents` is true")


class Ranking(ResponseModel):
    """The documents, the best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: dict[str, int]


class Model(ResponseModel):
    """A model, identified by its served name or by an alias."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str
    loaded: bool | None = Field(default=None, description="whether a worker has the model loaded now")
    reason: str | None = Field(default=None, description="`load_failed` while the model cannot be loaded")
    parent: str | None = Field(default=None, description="the model to which this adapter belongs; absent for others")
    max_model_len: int | None = Field(
        default=None, description="how many tokens prompt and answer may have together; absent if it is unknown"
    )


class ModelList(Page):
    """The live models that the tenant may use."""

    data: list[Model]


class InputItemList(Page):
    """One page of the items of a response's input."""

    data: list[dict[str, Any]] = Field(description="messages, reasoning, calls of functions and their results")


class InputTokens(ResponseModel):
    """The estimated number of tokens of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class File(ResponseModel):
    """A file; times are in seconds since the epoch."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output", "assistants", "user_data"]
    status: Literal["processed"]


class FileDeleted(ResponseModel):
    """The answer to the deletion of a file."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class ResponseDeleted(ResponseModel):
    """The answer to the deletion of a response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class FileList(Page):
    """One page of files."""

    data: list[File]


class RequestCounts(ResponseModel):
    """The lines of a batch. The total is 0 until the lines were validated."""

    total: int
    completed: int
    failed: int


class Batch(ResponseModel):
    """A batch; times are in seconds since the epoch, null if they have not come."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None = Field(description="the invalid lines, if the batch has failed")
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    webhook: dict[str, str | int] = Field(default={}, description="where the end is told, and what became of that")


class BatchList(Page):
    """One page of batches."""

    data: list[Batch]


class MessageUsage(ResponseModel):
    """Token counts, with Anthropic's field names."""

    input_tokens: int = Field(description="tokens of the prompt that were not in a cache")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(ResponseModel):
    """A `message`; Anthropic's reference describes the fields."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "refusal", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    queue: QueueFacts
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut or left out")
    citations: list[Citation] = Field(
        default=[], description="the passages in the prompt, if `retrieval` was asked for"
    )
    cached: Cached | None = Field(default=None, description="only if the answer comes from the semantic cache")


class TokenCount(ResponseModel):
    """The estimated number of tokens of a prompt."""

    input_tokens: int


class MessageError(Error):
    """An error in the shape of Anthropic's API, beside the fields of every error."""

    type: Literal["error"]
    request_id: str


class MessageYield(Yield):
    """A refusal in the shape of Anthropic's API, beside the fields of every refusal."""

    type: Literal["error"]
    request_id: str
