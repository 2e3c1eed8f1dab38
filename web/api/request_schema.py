"""Body → validated request, or what is wrong with it, field by field; pure.

The ranges of sampling fields are those that the engine takes (workers/engine/sampling.py); a test of
both rooms compares them. `payload` is what the engine reads: every default written out, so that an
answer does not depend on which version of a worker ran it.
"""

import secrets
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from web.http.api_errors import FieldError, field_errors, quoted

#: The engine searches each token for every stop string.
MAX_STOPS, MAX_STOP_CHARS = 16, 256
#: Each biased token costs every step.
MAX_BIASES = 1024
#: As many of the likeliest tokens as OpenAI gives.
MAX_LOGPROBS = 20
#: A chat of more messages than this is no chat; their texts are bound by the body's size.
MAX_MESSAGES = 10_000
#: Metadata is kept in the job's record, in the store's memory.
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
#: As the setting's own upper end (PENSTOCK_MAX_DEADLINE_MS); the setting's value is checked at admission.
MAX_MS = 86_400_000
MAX_TOKENS = 10_000_000
#: A supersede_key is kept as a digest; this bounds what is digested.
MAX_SUPERSEDE_KEY = 256
#: Unsigned 31 bits: also survives clients that read it back as a signed word.
_SEEDS = 2**31 - 1


def _clean(text: str) -> str:
    if "\0" in text:
        raise ValueError("the text holds a NUL character (\\u0000), which no prompt may")
    return text


def some_text(text: str) -> str:
    """Refuse a prompt of no tokens."""
    if not text:
        raise ValueError("the text is empty")
    return text


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _metadata(value: dict[str, str]) -> dict[str, str]:
    for key, text in value.items():
        if not 1 <= len(key) <= MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise ValueError(
                f"metadata {quoted(key)}: keys have 1 to {MAX_METADATA_KEY} characters, "
                f"values at most {MAX_METADATA_VALUE}"
            )
    return value


def _biases(value: dict[str, float]) -> dict[str, float]:
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10) or not -100 <= bias <= 100:
            raise ValueError(f"logit_bias {key!r}={bias!r}: token ids with numbers from -100 to 100")
    return value


Clean = Annotated[str, AfterValidator(_clean)]
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS), AfterValidator(_clean)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]
Metadata = Annotated[dict[str, Clean], Field(max_length=MAX_METADATA), AfterValidator(_metadata)]
#: What `degrade` says of itself on every route.
DEGRADE = "false: rather refuse the job than cut its answer; counts where system and tenant allow cuts"
SupersedeKey = Annotated[Clean, Field(min_length=1, max_length=MAX_SUPERSEDE_KEY)]
Biases = Annotated[dict[str, float], Field(max_length=MAX_BIASES), AfterValidator(_biases)]


class Body(BaseModel):
    """Base of all bodies: no field that we do not know, no value that has to be guessed at."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Clean


class Sampling(Body):
    """How tokens are chosen; the defaults are llama.cpp's."""

    temperature: float = Field(0.8, ge=0, le=5, description="0: always the most likely token")
    top_p: float = Field(0.95, ge=0, le=1)
    top_k: int = Field(40, ge=0, le=1_000_000, description="0: off")
    min_p: float = Field(0.05, ge=0, le=1)
    repeat_penalty: float = Field(1.0, ge=0.01, le=10)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, gt=-(2**64), lt=2**64, description="the same seed gives the same answer")
    stop: Stops | None = None
    logit_bias: Biases | None = None

    def sampling(self) -> dict[str, Any]:
        """The sampling fields of the payload. A seed is drawn here, so that every attempt of a job is one answer."""
        fields = self.model_dump(include=set(Sampling.model_fields), exclude_none=True)
        return fields | {"seed": secrets.randbelow(_SEEDS) if self.seed is None else self.seed}


class ResponseFormat(Body):
    """What the answer must look like; the engine holds it to that by grammar."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and not isinstance((self.json_schema or {}).get("schema"), dict):
            raise ValueError("response_format of type json_schema needs json_schema.schema, an object")
        return self


class Asked(Body):
    """What is asked for, beside how its tokens are chosen."""

    prompt: Annotated[str, AfterValidator(_clean), AfterValidator(some_text)] | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = Field(
        None, description="a chat, through the model's own template; either this or prompt"
    )
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    model: Annotated[Clean, Field(min_length=1, max_length=200)] | None = None
    response_format: ResponseFormat | None = None
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="how likely each token was, and so many of the likeliest beside it"
    )
    deadline_ms: int | None = Field(None, ge=1, description="patience, from now; the most is a setting")
    start_within_ms: int | None = Field(None, ge=1, le=MAX_MS, description="patience until the first token")
    poll_grace_ms: int | None = Field(None, ge=0, le=MAX_MS, description="abandoned when not polled for this long")
    metadata: Metadata | None = None
    supersede_key: SupersedeKey | None = Field(None, description="cancels the tenant's older job of the same key")
    degrade: bool = Field(default=True, description=DEGRADE)
    ticket: bool = Field(default=False, description="answer urls.events_signed: this job's events without a key")


class SubmitBody(Sampling, Asked):
    """`POST /v1/jobs`: `prompt` or `messages`, and what may go with them."""

    @model_validator(mode="after")
    def _one_prompt(self) -> "SubmitBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages is needed")
        return self

    def payload(self) -> dict[str, Any]:
        """What the engine reads."""
        if self.messages is None:
            return payload_of(self, {"prompt": self.prompt}, self.response_format, self.logprobs)
        messages = [message.model_dump() for message in self.messages]
        return payload_of(self, {"messages": messages}, self.response_format, self.logprobs)


def payload_of(
    sampling: Sampling, what: dict[str, Any], response_format: ResponseFormat | None, logprobs: int | None = None
) -> dict[str, Any]:
    """The payload that the engine reads: what to answer, how to choose, what form to keep, what to tell beside it."""
    payload = sampling.sampling() | what
    if logprobs is not None:
        payload["logprobs"] = logprobs
    if response_format is not None and response_format.type != "text":
        payload["response_format"] = response_format.model_dump(exclude_none=True)
    return payload


def read_submit(value: Any) -> SubmitBody | list[FieldError]:
    """The request in a parsed body, or everything that is wrong with it (never an empty list)."""
    try:
        return SubmitBody.model_validate(value)
    except ValidationError as error:
        return field_errors(error)
