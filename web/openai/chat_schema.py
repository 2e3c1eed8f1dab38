"""OpenAI's request bodies → ours; pure.

Three kinds of fields: those we serve; those without influence on the answer, taken and ignored; and
those that would change the answer and are not there: 400 `unsupported_parameter` with the field's
name, never silently ignored. A field that nobody knows is of the third kind.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from web.api.request_schema import (
    DEGRADE,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_MS,
    MAX_TOKENS,
    Body,
    Clean,
    Message,
    ResponseFormat,
    Sampling,
    SupersedeKey,
    payload_of,
    some_text,
)
from web.http.api_errors import ApiError

#: OpenAI's default; a completion is a continuation, not an essay.
COMPLETION_MAX_TOKENS = 16

_IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
#: Fields that are served in one way only: what they may say, because it is what we do anyway.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False, 0),
    "modalities": (["text"],),
    "n": (1,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
#: Of a message: taken and ignored, and neutral where empty.
_MESSAGE_IGNORED = frozenset({"annotations", "name", "reasoning", "reasoning_content", "refusal"})
_MESSAGE_NEUTRAL = frozenset({"audio", "function_call", "tool_calls"})
#: Templates know no developers.
_ROLES = {"developer": "system"}


class StreamOptions(Body):
    """What comes with a stream."""

    include_usage: bool | None = None
    #: Padding against observers of packet sizes; TLS in front of us may do it.
    include_obfuscation: bool | None = None


class OpenAISampling(Sampling):
    """What every route that generates takes. The defaults of temperature and top_p are OpenAI's."""

    temperature: float = Field(1.0, ge=0, le=5)
    top_p: float = Field(1.0, ge=0, le=1)
    model: Annotated[Clean, Field(min_length=1, max_length=200)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    deadline_ms: int | None = Field(None, ge=1, description="patience; OpenAI's package sends it in extra_body")
    start_within_ms: int | None = Field(None, ge=1, le=MAX_MS)
    supersede_key: SupersedeKey | None = None
    degrade: bool = Field(default=True, description=DEGRADE)


class OpenAIBody(OpenAISampling):
    """What chat and completions take."""

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)

    @model_validator(mode="before")
    @classmethod
    def _served(cls, value: Any) -> Any:
        return served_fields(value, frozenset(cls.model_fields)) if isinstance(value, dict) else value


class ChatBody(OpenAIBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    response_format: ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="beside each token; needs logprobs")

    @model_validator(mode="after")
    def _asks_for_logprobs(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs={self.top_logprobs} needs logprobs to be true")
        return self

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            told = [one_message(item, f"messages[{i}]") for i, item in enumerate(value["messages"])]
            return value | {"messages": told}
        return value

    @property
    def most_tokens(self) -> int | None:
        """`max_completion_tokens` is `max_tokens` by its newer name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def payload(self) -> dict[str, Any]:
        """What the engine reads."""
        messages = [message.model_dump() for message in self.messages]
        top = (self.top_logprobs or 0) if self.logprobs else None
        return payload_of(self, {"messages": messages}, self.response_format, top)


class CompletionBody(OpenAIBody):
    """`POST /v1/completions`."""

    prompt: Annotated[Clean, AfterValidator(some_text)]
    logprobs: int | None = Field(None, ge=0, le=5, description="the likeliest tokens beside each; 0: its own alone")

    @model_validator(mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        prompt = value.get("prompt") if isinstance(value, dict) else None
        if isinstance(value, dict) and value.get("logprobs") is False:
            # The chat's way to ask for none.
            value = value | {"logprobs": None}
        if not isinstance(prompt, list):
            return value
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return value | {"prompt": prompt[0]}
        raise unsupported("prompt", "one text is served, neither several nor token ids")

    @property
    def most_tokens(self) -> int | None:
        """As the client named it."""
        return self.max_tokens

    def payload(self) -> dict[str, Any]:
        """What the engine reads."""
        return payload_of(self, {"prompt": self.prompt}, None, self.logprobs)


def unsupported(param: str, why: str) -> ApiError:
    """The 400 for what would change the answer and is not there."""
    return ApiError("unsupported_parameter", f"{param} is not supported here: {why}", param=param)


def served_fields(
    value: dict[str, Any], known: frozenset[str], *, more_neutral: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
) -> dict[str, Any]:
    """The fields that we serve. Null counts as absent, as OpenAI has it. Raises ApiError(unsupported_parameter)."""
    neutral_of = _NEUTRAL | dict(more_neutral)
    kept = {}
    for name, given in value.items():
        if name in known and given is not None:
            kept[name] = given
        elif given is None or name in _IGNORED:
            continue
        elif name not in neutral_of:
            raise unsupported(name, "this server does not know it")
        elif not any(given == neutral and type(given) is type(neutral) for neutral in neutral_of[name]):
            only = " or ".join(repr(neutral) for neutral in neutral_of[name])
            raise unsupported(name, f"{name}={str(given)[:60]} was asked for, and only {only} is served")
    return kept


def one_message(item: Any, where: str) -> Any:
    """A message as ours: parts of text joined, roles by our names. Raises ApiError naming `where` it is wrong."""
    if not isinstance(item, dict):
        return item
    kept: dict[str, Any] = {}
    for name, given in item.items():
        if name in _MESSAGE_NEUTRAL and given:
            raise unsupported(f"{where}.{name}", "tools and audio are not served")
        if name not in _MESSAGE_IGNORED | _MESSAGE_NEUTRAL:
            kept[name] = given
    role = kept.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{where}.role", "tools are not served")
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is None and role == "assistant":
        kept["content"] = ""
    return kept | {"role": _ROLES.get(str(role), role)}


def _part(part: Any, where: str) -> str:
    kind: Any = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return str(part["text"])
    raise unsupported(where, "only parts of type text are served")
