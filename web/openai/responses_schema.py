"""The body of `POST /v1/responses` → ours; pure. What is not served is 400 by name, as in web/openai/chat_schema.py."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from web.api.request_schema import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_TOKENS,
    Clean,
    Message,
    Metadata,
    ResponseFormat,
    payload_of,
    some_text,
)
from web.openai.chat_schema import OpenAISampling, one_message, served_fields, unsupported

#: Served in one way only, beside those of chat_schema.py: what each may say, because it is what we do anyway.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "max_tool_calls": (0,),
    "reasoning": ({},),
    "truncation": ("disabled",),
}
#: The one thing that `include` may name.
LOGPROBS = "message.output_text.logprobs"
#: Of an item of the input: what people send back with an answer of ours.
_ITEM_IGNORED = frozenset({"id", "phase", "status", "type"})


def included(name: Any) -> bool:
    """Whether this, named by `include`, is served. Raises ApiError(unsupported_parameter) when it is not."""
    if name != LOGPROBS:
        raise unsupported("include", f"{str(name)[:60]!r} was asked for, and only {LOGPROBS!r} is served")
    return True


def _included(value: Any) -> Any:
    return [name for name in value if included(name)] if isinstance(value, list) else value


def _messages(value: Any) -> Any:
    if isinstance(value, str):
        return [{"role": "user", "content": some_text(value)}]
    return [_item(item, i) for i, item in enumerate(value)] if isinstance(value, list) else value


def _item(item: Any, index: int) -> Any:
    if not isinstance(item, dict):
        return item
    where = f"input[{index}]"
    kind = item.get("type") or "message"
    if kind != "message":
        raise unsupported(f"{where}.type", f"type={str(kind)[:60]!r}; only messages are served")
    return one_message({name: given for name, given in item.items() if name not in _ITEM_IGNORED}, where)


def _format(text: Any) -> Any:
    """`text.format` as the response_format of the other routes, which nests the schema one deeper."""
    if not isinstance(text, dict):
        return text
    for name, given in text.items():
        if name != "format" and given is not None and (name, given) != ("verbosity", "medium"):
            raise unsupported(f"text.{name}", f"{name}={str(given)[:60]!r} was asked for")
    given = text.get("format") or {"type": "text"}
    kind = given.get("type") if isinstance(given, dict) else given
    if kind not in ("text", "json_object", "json_schema"):
        raise unsupported("text.format", f"format={str(given)[:60]!r} was asked for")
    if kind != "json_schema":
        return {"type": kind}
    return {"type": kind, "json_schema": {name: part for name, part in given.items() if name != "type"}}


class ResponsesBody(OpenAISampling):
    """`POST /v1/responses`."""

    input: Annotated[
        list[Message],
        Field(min_length=1, max_length=MAX_MESSAGES, description="a text, or messages"),
        BeforeValidator(_messages, json_schema_input_type=str | list[dict[str, Any]]),
    ]
    instructions: Clean | None = Field(None, description="what the model is told before the input, as its system")
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    metadata: Metadata | None = None
    text: Annotated[
        ResponseFormat | None,
        Field(description="format: text, json_object or json_schema"),
        BeforeValidator(_format, json_schema_input_type=dict[str, Any] | None),
    ] = None
    include: Annotated[list[str], BeforeValidator(_included)] = Field([], description=f"{LOGPROBS}, or nothing")
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="beside each token; needs include")
    background: bool = Field(default=False, description="answer at once; the job lives on without its connection")

    @model_validator(mode="before")
    @classmethod
    def _served(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return served_fields(value, frozenset(cls.model_fields), more_neutral=_NEUTRAL)

    @model_validator(mode="after")
    def _asks_for_logprobs(self) -> "ResponsesBody":
        if self.top_logprobs and not self.include:
            raise ValueError(f"top_logprobs={self.top_logprobs} needs include to name {LOGPROBS}")
        return self

    @property
    def _likeliest(self) -> int | None:
        """How many tokens to tell beside each; None: no logprobs at all."""
        return (self.top_logprobs or 0) if self.include else None

    def payload(self) -> dict[str, Any]:
        """What the engine reads."""
        said = [message.model_dump() for message in self.input]
        told = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return payload_of(self, {"messages": [*told, *said]}, self.text, self._likeliest)

    def form(self) -> dict[str, Any]:
        """What answers about the job repeat of its request: numbers and names, none of its texts."""
        return {
            "api": "responses",
            "background": self.background,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_output_tokens": self.max_output_tokens,
            "format": self.text.type if self.text else "text",
            "top_logprobs": self._likeliest,
        }
