"""Validate the bodies of OpenAI's chat and completions routes, with vLLM's additional fields; pure functions."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo, model_validator
from pydantic_core import from_json

from shared.candidates import MAX_CANDIDATES
from web.api.body import MAX_FIELDS, Body, NulFreeText, Prompt, ignored_as
from web.api.candidates import CandidateCount
from web.api.request_schema import (
    MAX_LOGPROBS,
    MAX_TOKENS,
    SIZES,
    AnswerFields,
    Sampling,
    TokenIds,
    build_payload,
    read_inputs,
)
from web.api.response_format import MAX_CHOICES, Choices, JobResponseFormat, ResponseFormat, check_keywords
from web.api.retrieval_field import Retrieval
from web.http.api_errors import ApiError, quoted
from web.http.json_body import check_budget
from web.openai.accepted_fields import OpenAIFields
from web.openai.chat_messages import ChatMessages, normalize_chat_message
from web.openai.tools_schema import NAME, Choice, Tools, tool_fields


def _as_schema(value: Any, info: ValidationInfo) -> Any:
    """Return the schema in a text, as some clients send it; any other value is left as it is."""
    if not isinstance(value, str):
        return value
    data = value.encode()
    try:
        check_budget(data)
        return from_json(data, allow_inf_nan=False)
    except (ApiError, ValueError):
        name = "json" if info.field_name == "schema_" else info.field_name
        raise ValueError(f"{name}={quoted(value)} is neither a JSON schema nor the text of one") from None


_Schema = Annotated[dict[str, Any], BeforeValidator(_as_schema, json_schema_input_type=dict[str, Any] | str)]
_Text = Annotated[NulFreeText, Field(min_length=1)]


class StructuredOutputs(Body):
    """The object `structured_outputs`, which names one format. The other fields are accepted with their defaults."""

    schema_: _Schema | None = Field(None, alias="json", description="a JSON schema, or the text of one")
    json_object: bool | None = None
    regex: _Text | None = None
    choice: Choices | None = None
    grammar: _Text | None = Field(None, description="a grammar in llguidance's Lark format")
    disable_fallback: bool | None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None

    @model_validator(mode="after")
    def _require_a_format(self) -> "StructuredOutputs":
        if not self.formats():
            raise ValueError("structured_outputs requires one of json, json_object, regex, choice and grammar")
        return self

    def formats(self) -> dict[str, dict[str, Any]]:
        """Return each format that the object names, by the name of its field, as the native route spells it."""
        whole = {"json_object": {"type": "json_object"}} if self.json_object else {}
        return whole | _formats("structured_outputs.", self.schema_, self.regex, self.choice, self.grammar)


class StructuredFields(Body):
    """The fields of a request that name a format: `structured_outputs`, and the older ones that begin with `guided`."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = Field(None, description="a JSON schema, or the text of one")
    guided_regex: _Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: _Text | None = Field(None, description="a grammar in llguidance's Lark format")

    @model_validator(mode="after")
    def _require_one_format(self) -> "StructuredFields":
        named = list(self._formats())
        for name in ("response_format", "text"):
            usual = getattr(self, name, None)
            if usual is not None and usual.type != "text":
                named.append(name)
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: an answer has one format")
        if self.guided_json is not None:
            check_keywords(self.guided_json, "guided_json")
        if self.structured_outputs is not None and self.structured_outputs.schema_ is not None:
            check_keywords(self.structured_outputs.schema_, "structured_outputs.json")
        return self

    def answer_format(self, usual: ResponseFormat | None) -> ResponseFormat | None:
        """Return the format that one of these fields names or, without one, the format of the usual field."""
        formats = list(self._formats().values())
        return JobResponseFormat.model_validate(formats[0]) if formats else usual

    def _formats(self) -> dict[str, dict[str, Any]]:
        inner = self.structured_outputs.formats() if self.structured_outputs is not None else {}
        return inner | _formats("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)


#: The names of these fields.
STRUCTURED = frozenset(StructuredFields.model_fields)
#: Their lengths that are checked before the fields are validated (web/api/body.py).
STRUCTURED_SIZES = {"structured_outputs": MAX_FIELDS, "guided_choice": MAX_CHOICES}


def _formats(
    prefix: str, schema: dict[str, Any] | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> dict[str, dict[str, Any]]:
    texts = {"regex": regex, "choice": choice, "grammar": grammar}
    found: dict[str, dict[str, Any]] = {
        f"{prefix}{name}": {"type": name, name: given} for name, given in texts.items() if given is not None
    }
    if schema is not None:
        found[f"{prefix}json"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return found


#: The default of `max_tokens` on the completions route, as in OpenAI's API.
COMPLETION_MAX_TOKENS = 16

#: The lengths that are checked before the fields are validated. OpenAI's metadata is ignored, whatever its length.
OPENAI_SIZES = {
    **{name: limit for name, limit in SIZES.items() if name != "metadata"},
    **STRUCTURED_SIZES,
    "stream_options": MAX_FIELDS,
}
#: The fields of a chat that its template gets.
_TOLD = ("reasoning_effort", "chat_template_kwargs")
#: Variables of a template that the client may not set, because the engine does.
_RESERVED = frozenset(
    {"add_generation_prompt", "bos_token", "eos_token", "messages", "raise_exception", "strftime_now", "tools"}
)


def _check_variables(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if name in _RESERVED or not NAME.match(name):
            raise ValueError(f"chat_template_kwargs {quoted(name)} is no name of a variable that a request may set")
    return value


TemplateVariables = Annotated[
    dict[str, bool | int | float | Annotated[NulFreeText, Field(max_length=256)]],
    Field(max_length=16),
    AfterValidator(_check_variables),
]
#: A variable of the model's chat template.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


def _as_prompts(value: Any) -> list[str | list[int]]:
    return read_inputs(value, "prompt", MAX_CANDIDATES)


Prompts = Annotated[
    list[str | list[int]],
    # It checks everything, so pydantic does not check the items once more.
    PlainValidator(
        _as_prompts,
        json_schema_input_type=Prompt
        | TokenIds
        | Annotated[list[Prompt | TokenIds], Field(min_length=1, max_length=MAX_CANDIDATES)],
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


class OpenAISampling(OpenAIFields, StructuredFields, Sampling, AnswerFields):
    """The common fields of the OpenAI routes that generate text, with OpenAI's defaults and vLLM's additional names."""

    temperature: float = Field(1.0, ge=0, le=5)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(40, ge=-1, le=1_000_000, description="0 or -1: no limit")
    repetition_penalty: float | None = Field(None, ge=0.01, le=10, description="vLLM's name of repeat_penalty")
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _require_one_penalty(self) -> "OpenAISampling":
        if "repeat_penalty" in self.model_fields_set and self.repetition_penalty not in (None, self.repeat_penalty):
            raise ValueError(
                f"repetition_penalty={self.repetition_penalty} and repeat_penalty={self.repeat_penalty} are two names "
                "of the same penalty"
            )
        return self

    def sampling(self) -> dict[str, Any]:
        """Return the sampling fields of the payload, under the names of the native route."""
        fields = super().sampling() | {"top_k": max(0, self.top_k)}
        if self.repetition_penalty is None:
            return fields
        asked = sorted({*fields["asked"], "repeat_penalty"})
        return fields | {"repeat_penalty": self.repetition_penalty, "asked": asked}


class OpenAIBody(OpenAISampling):
    """The common fields of the chat and completions routes."""

    sizes = OPENAI_SIZES

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


class ChatWithTools(OpenAIBody):
    """The body of `POST /v1/chat/completions`, in whose answer the model may call tools."""

    message_list = "messages"

    messages: ChatMessages
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="how many alternatives to return for each token; requires logprobs"
    )
    tools: Tools | None = None
    tool_choice: Choice | None = Field(None, description="auto, none, required, a function, or allowed_tools")
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call")
    reasoning_effort: ReasoningEffort | None = Field(
        None, description="a variable of the model's chat template; without effect if the template does not use it"
    )
    retrieval: Retrieval | None = Field(None, description="a collection from which passages go into the prompt")
    chat_template_kwargs: TemplateVariables | None = Field(
        None, description="variables of the model's chat template, such as enable_thinking"
    )

    @model_validator(mode="after")
    def _require_logprobs(self) -> "ChatWithTools":
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs={self.top_logprobs} requires logprobs to be true")
        return self

    @model_validator(mode="after")
    def _check_choice(self) -> "ChatWithTools":
        tool_fields(self.tools, self.tool_choice, self.parallel_tool_calls)
        return self

    @classmethod
    def converted(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the body with its messages in the native format. Raises ApiError."""
        messages = value.get("messages")
        if not isinstance(messages, list):
            return value
        return value | {"messages": [normalize_chat_message(item, f"messages[{i}]") for i, item in enumerate(messages)]}

    @property
    def requested_max_tokens(self) -> int | None:
        """The maximum length of the answer in tokens; OpenAI has renamed `max_tokens` to `max_completion_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        prompt = {"messages": [message.model_dump(exclude_none=True) for message in self.messages], "parts": True}
        top = (self.top_logprobs or 0) if self.logprobs else None
        tools = tool_fields(self.tools, self.tool_choice, self.parallel_tool_calls)
        told = {name: given for name in _TOLD if (given := getattr(self, name)) is not None}
        form = self.answer_format(self.response_format)
        return build_payload(self, prompt, form, top, self.candidates) | tools | told


class CompletionBody(OpenAIBody):
    """The body of `POST /v1/completions`."""

    prompt: Prompts
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="how many alternatives to return for each token; 0: only the logprob of the token itself",
    )

    @classmethod
    def converted(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the body. On the chat route, `logprobs: false` means none. Some clients send it to this route too."""
        return value | {"logprobs": None} if value.get("logprobs") is False else value

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
