"""Validate the bodies of OpenAI's chat and completions routes; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from shared.candidates import MAX_CANDIDATES
from web.api.body import Body, NulFreeText, Prompt
from web.api.body_sizes import MAX_FIELDS, check_sizes
from web.api.candidates import CandidateCount
from web.api.escalation import Escalate
from web.api.ignored import NotesIgnored, ignored_as, note_ignored
from web.api.inputs import read_inputs
from web.api.request_schema import (
    DEGRADE,
    ESCALATE,
    MAX_LOGPROBS,
    MAX_MS,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    PRIVATE,
    SIZES,
    Messages,
    Priority,
    ReturnTicket,
    SupersedeKey,
    build_payload,
)
from web.api.response_format import ResponseFormat
from web.openai.accepted_fields import supported_fields, unsupported
from web.openai.structured_fields import STRUCTURED_SIZES, StructuredFields
from web.openai.vllm_sampling import VllmSampling

#: The default of `max_tokens` on the completions route, as in OpenAI's API.
COMPLETION_MAX_TOKENS = 16

#: The lengths that are checked before the fields are validated. OpenAI's metadata is ignored, whatever its length.
OPENAI_SIZES = {
    **{name: limit for name, limit in SIZES.items() if name != "metadata"},
    **STRUCTURED_SIZES,
    "stream_options": MAX_FIELDS,
}
#: Fields of a message that are ignored, and fields that are ignored only if they are empty.
_MESSAGE_IGNORED = frozenset(
    {
        "annotations",
        "name",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "reasoning_opaque",
        "reasoning_text",
        "refusal",
    }
)
#: Where a client would have a cache begin. Prefixes are cached without being asked for.
_CACHE_MARKS = frozenset({"cache_control", "copilot_cache_control"})
_MESSAGE_NEUTRAL = {
    "audio": "audio is not supported",
    "function_call": "tools are not supported",
    # Mistral's package sends it with each message of the assistant.
    "prefix": "an answer does not continue a message",
    "tool_calls": "tools are not supported",
}
#: Maps the name of a role in OpenAI's API to the name that chat templates know.
_ROLES = {"developer": "system"}
#: A message with one of these roles and a text needs no conversion; nearly all messages are of this kind.
_PLAIN_ROLES = ("system", "user", "assistant")


def _as_prompts(value: Any) -> list[str | list[int]]:
    return read_inputs(value, "prompt", MAX_CANDIDATES)


_Ids = Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]], Field(min_length=1)]
Prompts = Annotated[
    list[str | list[int]],
    # It checks everything, so pydantic does not check the items once more.
    PlainValidator(
        _as_prompts,
        json_schema_input_type=Prompt
        | _Ids
        | Annotated[list[Prompt | _Ids], Field(min_length=1, max_length=MAX_CANDIDATES)],
    ),
]


class StreamOptions(Body):
    """The options of a stream."""

    include_usage: bool | None = None
    #: Whether every chunk has token counts, the ones so far; only with `include_usage`, as in vLLM.
    continuous_usage_stats: bool | None = None
    #: Whether OpenAI pads events to hide their lengths from network observers. The field is accepted and ignored.
    include_obfuscation: Annotated[bool | None, ignored_as("stream_options.include_obfuscation")] = None

    @property
    def usage_chunks(self) -> Literal["none", "last", "all"]:
        """The chunks that have token counts."""
        if not self.include_usage:
            return "none"
        return "all" if self.continuous_usage_stats else "last"


class OpenAISampling(NotesIgnored, VllmSampling, StructuredFields):
    """The common fields of the OpenAI routes that generate text; temperature and top_p have OpenAI's defaults."""

    temperature: float = Field(1.0, ge=0, le=5)
    top_p: float = Field(1.0, ge=0, le=1)
    model: Annotated[NulFreeText, Field(min_length=1, max_length=200)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    deadline_ms: int | None = Field(
        None, ge=1, description="the deadline in ms from now; with OpenAI's package, set it in extra_body"
    )
    start_within_ms: int | None = Field(None, ge=1, le=MAX_MS)
    supersede_key: SupersedeKey | None = None
    return_ticket: ReturnTicket | None = None
    priority: Priority = 0
    degrade: bool = Field(default=True, description=DEGRADE)
    private: bool = Field(default=False, description=PRIVATE)
    escalate: Escalate | None = Field(None, description=ESCALATE)


class OpenAIBody(OpenAISampling):
    """The common fields of the chat and completions routes."""

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    response_format: ResponseFormat | None = None
    n: CandidateCount = Field(1, description="how many choices to return")
    best_of: CandidateCount | None = Field(
        None, description="how many answers to generate; the n likeliest are returned; by default n"
    )

    @model_validator(mode="after")
    def _check_best_of(self) -> "OpenAIBody":
        if self.answers_each < self.n:
            raise ValueError(f"best_of={self.best_of} is less than n={self.n}")
        if self.stream and self.answers_each > self.n:
            raise ValueError(f"best_of={self.best_of} is more than n={self.n}, so the choices cannot be streamed")
        return self

    @property
    def answers_each(self) -> int:
        """How many answers to each prompt are generated."""
        return self.n if self.best_of is None else self.best_of

    @property
    def candidates(self) -> int:
        """How many answers are generated in all."""
        return self.answers_each

    @property
    def choices(self) -> int:
        """How many of the answers are returned."""
        return self.n

    @model_validator(mode="before")
    @classmethod
    def _keep_supported_fields(cls, value: Any) -> Any:
        return supported_fields(value, frozenset(cls.model_fields)) if isinstance(value, dict) else value


class ChatBody(OpenAIBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="how many alternatives to return for each token; requires logprobs"
    )

    @model_validator(mode="after")
    def _require_logprobs(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs={self.top_logprobs} requires logprobs to be true")
        return self

    @model_validator(mode="before")
    @classmethod
    def _normalize_messages(cls, value: Any) -> Any:
        check_sizes(value, OPENAI_SIZES, messages="messages")
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            messages = [normalize_message(item, f"messages[{i}]") for i, item in enumerate(value["messages"])]
            return value | {"messages": messages}
        return value

    @property
    def requested_max_tokens(self) -> int | None:
        """The maximum length of the answer in tokens; OpenAI has renamed `max_tokens` to `max_completion_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        messages = [message.model_dump() for message in self.messages]
        top = (self.top_logprobs or 0) if self.logprobs else None
        form = self.answer_format(self.response_format)
        return build_payload(self, {"messages": messages}, form, top, self.candidates)


class CompletionBody(OpenAIBody):
    """The body of `POST /v1/completions`."""

    prompt: Prompts
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="how many alternatives to return for each token; 0: only the logprob of the token itself",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_fields(cls, value: Any) -> Any:
        check_sizes(value, OPENAI_SIZES)
        if isinstance(value, dict) and value.get("logprobs") is False:
            # On the chat route, false means no logprobs. Some clients send false to the completions route too.
            value = value | {"logprobs": None}
        return value

    @model_validator(mode="after")
    def _check_candidates(self) -> "CompletionBody":
        if len(self.prompt) > 1 and self.best_of not in (None, self.n):
            raise ValueError(f"best_of={self.best_of} is more than n={self.n}, which is possible for one prompt only")
        check_candidates(self.answers_each, len(self.prompt))
        return self

    @property
    def candidates(self) -> int:
        """How many answers are generated in all. Those to the first prompt come first."""
        return len(self.prompt) * self.answers_each

    @property
    def choices(self) -> int:
        """How many of the answers are returned."""
        return len(self.prompt) * self.n

    @property
    def requested_max_tokens(self) -> int | None:
        """The maximum length of the answer in tokens, or None if the client named no maximum."""
        return self.max_tokens

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        form = self.answer_format(self.response_format)
        first = self.prompt[0]
        is_one_text = len(self.prompt) == 1 and isinstance(first, str)
        prompt = {"prompt": first} if is_one_text else {"prompts": self.prompt}
        return build_payload(self, prompt, form, self.logprobs, self.candidates)


def check_candidates(n: int, prompts: int) -> None:
    """Raise ValueError if `n` answers to each of the prompts are too many."""
    if n * prompts > MAX_CANDIDATES:
        asked = f"n={n} for each of {prompts} prompts makes {n * prompts} answers"
        raise ValueError(f"{asked}; at most {MAX_CANDIDATES} are allowed")


def normalize_message(item: Any, where: str) -> Any:
    """Convert a message to the native format: join its text parts, and rename its role.

    Raises ApiError(unsupported_parameter) if the message uses tools, audio, or parts other than text. The error names
    the message by its path in the body, `where`.
    """
    if not isinstance(item, dict):
        return item
    if len(item) == 2 and item.get("role") in _PLAIN_ROLES and isinstance(item.get("content"), str):
        return item
    kept: dict[str, Any] = {}
    for name, given in item.items():
        if name in _MESSAGE_NEUTRAL and given:
            raise unsupported(f"{where}.{name}", _MESSAGE_NEUTRAL[name])
        if given is not None and name in _CACHE_MARKS:
            note_ignored(f"messages.{name}")
        elif given is not None and name not in _MESSAGE_IGNORED | _MESSAGE_NEUTRAL.keys():
            kept[name] = given
    role = kept.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{where}.role", "tools are not supported")
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = join_parts(content, f"{where}.content", can_refuse=role == "assistant")
    elif content is None and role == "assistant":
        # The assistant of another server may have refused to answer; then this text is its whole message.
        refusal = item.get("refusal")
        kept["content"] = refusal if isinstance(refusal, str) else ""
    return kept | {"role": _ROLES.get(str(role), role)}


def join_parts(parts: list[Any], where: str, *, can_refuse: bool = False) -> str:
    """Return the text of a message's parts. A part of type refusal is accepted if `can_refuse`.

    Raises ApiError(unsupported_parameter), which names the part by the path of the list in the body, `where`.
    """
    return "".join(_part_text(part, f"{where}[{i}]", can_refuse=can_refuse) for i, part in enumerate(parts))


def _part_text(part: Any, where: str, *, can_refuse: bool) -> str:
    kind: Any = part.get("type") if isinstance(part, dict) else None
    field = "refusal" if can_refuse and kind == "refusal" else "text"
    if (kind in ("text", "input_text", "output_text") or field == "refusal") and isinstance(part.get(field), str):
        return str(part[field])
    raise unsupported(where, "only parts of type text are accepted")
