"""Models of the response bodies of Anthropic's routes, used for /openapi.json and by the tests."""

from typing import Any, Literal

from pydantic import Field

from web.openapi.response_models import Error, QueueFacts, ResponseModel, Yield


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
    degraded: list[dict[str, str | int]] = Field(default=[], description="what was cut from the answer under overload")


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


ALL: tuple[type[ResponseModel], ...] = (Message, TokenCount, MessageError, MessageYield)
