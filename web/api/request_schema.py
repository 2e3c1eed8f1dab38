"""Validate the body of a native request, and report every invalid field; pure functions.

The ranges of the sampling fields are those that the engine accepts (workers/engine/sampling.py); a test compares them.
A valid body is converted to the payload that the engine reads. The payload contains every default explicitly, so that
an answer does not depend on the version of the worker that computes it.
"""

import secrets
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from web.api.body import MAX_FIELDS, Body, NulFreeText, Prompt, check_sizes
from web.api.candidates import CandidateCount, Pick
from web.api.response_format import JobResponseFormat, ResponseFormat
from web.api.retrieval_field import Retrieval
from web.http.api_errors import ApiError, quoted
from web.http.callback_url import CallbackUrl


class Escalate(BaseModel):
    """The checks of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    checks: Annotated[list[Literal["invalid_json", "length"]], Field(min_length=1, max_length=2)] = Field(alias="if")


def checks_of(escalate: Escalate | None, *, streams: bool, candidates: int = 1) -> tuple[str, ...]:
    """Return the names of the checks.

    Raises ApiError for a stream, whose text is shown before it can be checked, and for a job with several candidates.
    """
    if escalate is None:
        return ()
    if candidates > 1:
        message = "escalate cannot be combined with n: the checks are those of one answer"
        raise ApiError("unsupported_parameter", message, param="escalate")
    if streams:
        message = "escalate cannot be combined with stream: an answer that has been shown cannot be replaced"
        raise ApiError("unsupported_parameter", message, param="escalate")
    return tuple(dict.fromkeys(escalate.checks))


#: How many stop strings a request may have, and how many characters each of them may have. The limits exist because
#: the engine searches the text for every stop string at each token.
MAX_STOPS, MAX_STOP_CHARS = 16, 256
#: How many tokens a request may bias. The limit exists because each biased token adds work to every step.
MAX_BIASES = 1024
#: How many tokens of its own a request may name that end the answer, and the largest token id, far above real ones.
MAX_STOP_TOKENS, MAX_TOKEN_ID = 256, 2**31 - 1
#: How many alternatives to each token a request may ask for; the same as OpenAI's maximum.
MAX_LOGPROBS = 20
#: How many messages a chat may have: more than real chats have. The limit on the body's size limits their total length.
MAX_MESSAGES = 10_000
#: How many entries metadata may have, and how many characters a key and a value may have. The limits exist because the
#: metadata is kept in the job's record, in the store's memory.
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
#: The lengths that are checked before the fields are validated (web/api/body.py).
SIZES = {
    "messages": MAX_MESSAGES,
    "stop": MAX_STOPS,
    "stop_token_ids": MAX_STOP_TOKENS,
    "logit_bias": MAX_BIASES,
    "metadata": MAX_METADATA,
    "response_format": MAX_FIELDS,
}
#: The maximum of the times in ms except `deadline_ms`: the largest value that PENSTOCK_MAX_DEADLINE_MS may have. The
#: limit for `deadline_ms` depends on the settings and the tenant; web/api/deadline.py checks it.
MAX_MS = 86_400_000
MAX_TOKENS = 10_000_000
#: The maximum length of a supersede_key. The limit bounds the time to compute the key's digest.
MAX_SUPERSEDE_KEY = 256
#: Random seeds are less than this number, because some clients read the seed as a signed 32-bit integer.
_SEEDS = 2**31 - 1


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _check_metadata(value: dict[str, str]) -> dict[str, str]:
    for key, text in value.items():
        if not 1 <= len(key) <= MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise ValueError(
                f"metadata {quoted(key)}: keys have 1 to {MAX_METADATA_KEY} characters, "
                f"values at most {MAX_METADATA_VALUE}"
            )
    return value


def _check_biases(value: dict[str, float]) -> dict[str, float]:
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10) or not -100 <= bias <= 100:
            raise ValueError(
                f"logit_bias {key!r}={bias!r}: keys are token ids, and values are numbers from -100 to 100"
            )
    return value


_Stop = Annotated[NulFreeText, Field(min_length=1, max_length=MAX_STOP_CHARS)]
_StopList = Annotated[list[_Stop], Field(max_length=MAX_STOPS)]
Stops = Annotated[_StopList, BeforeValidator(_as_list, json_schema_input_type=_Stop | _StopList)]
Metadata = Annotated[
    dict[str, Annotated[NulFreeText, Field(json_schema_extra={"maxLength": MAX_METADATA_VALUE})]],
    Field(
        max_length=MAX_METADATA,
        json_schema_extra={"propertyNames": {"minLength": 1, "maxLength": MAX_METADATA_KEY}},
    ),
    AfterValidator(_check_metadata),
]
ReturnTicket = Annotated[str, Field(description="the return_ticket of the refusal of this request")]
Biases = Annotated[
    dict[str, Annotated[float, Field(json_schema_extra={"minimum": -100, "maximum": 100})]],
    Field(max_length=MAX_BIASES, json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}}),
    AfterValidator(_check_biases),
]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
StopTokens = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)]


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: NulFreeText


#: fail_fast: after the first invalid message, the others are not validated, because each would add an error.
Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class Sampling(Body):
    """The sampling fields, which control how tokens are chosen; the defaults are those of llama.cpp."""

    temperature: float = Field(0.8, ge=0, le=5, description="0: always choose the most likely token")
    top_p: float = Field(0.95, ge=0, le=1)
    top_k: int = Field(40, ge=0, le=1_000_000, description="0: no limit")
    min_p: float = Field(0.05, ge=0, le=1)
    repeat_penalty: float = Field(1.0, ge=0.01, le=10)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(
        None, ge=-(2**64 - 1), le=2**64 - 1, description="the same request with the same seed gives the same answer"
    )
    stop: Stops | None = None
    logit_bias: Biases | None = None
    min_tokens: int | None = Field(
        None, ge=0, le=MAX_TOKENS, description="until the answer has this many tokens, nothing but its length ends it"
    )
    ignore_eos: bool | None = Field(None, description="true: never choose a token with which the model ends an answer")
    stop_token_ids: StopTokens | None = Field(None, description="tokens that end the answer and are no part of it")

    def sampling(self) -> dict[str, Any]:
        """Return the sampling fields of the payload.

        If the request names no seed, a random seed is chosen here, so that every attempt of the job generates the same
        answer. `asked` has the names of the fields that the request has.
        """
        fields = self.model_dump(include=_sampling_names(), exclude_none=True)
        # An upstream receives only what the client asked for.
        asked = sorted(self.model_fields_set & fields.keys())
        return fields | {"seed": secrets.randbelow(_SEEDS) if self.seed is None else self.seed, "asked": asked}


@cache
def _sampling_names() -> set[str]:
    return set(Sampling.model_fields)


class QueueFields(Body):
    """The fields of a request on every route: its model, and how long and in which place it may wait."""

    model: Annotated[NulFreeText, Field(min_length=1, max_length=200)] | None = None
    deadline_ms: int | None = Field(
        None,
        ge=1,
        description="the deadline in ms from now; the maximum is PENSTOCK_MAX_DEADLINE_MS. A package whose API has no "
        "such field can send it among its extra fields, such as extra_body of OpenAI's",
    )
    start_within_ms: int | None = Field(
        None, ge=1, le=MAX_MS, description="the start deadline: when the first token is needed, in ms from now"
    )
    #: A ticket of any length: one that is not valid for the request is not an error.
    return_ticket: ReturnTicket | None = None
    #: A bool or a float is not a priority: bodies are validated strictly.
    priority: int = Field(0, ge=-1, le=1, description="jobs with a higher one start first; -1 is batch work")
    private: bool = Field(
        default=False,
        description="true: the prompt may be sent only to pools that the operator has marked as local, or the request "
        "is refused",
    )


class AnswerFields(QueueFields):
    """The fields of a request on every route that generates text."""

    supersede_key: Annotated[NulFreeText, Field(min_length=1, max_length=MAX_SUPERSEDE_KEY)] | None = Field(
        None, description="cancel the tenant's older job that has the same key"
    )
    degrade: bool = Field(
        default=True,
        description="false: never shorten the answer, even if the job is then refused or expires; has an effect only "
        "if the system and the tenant allow shortened answers",
    )
    escalate: Escalate | None = Field(
        None, description="if the answer fails one of these checks, the job runs once more in a later pool of the route"
    )


def _require_one_in_schema(schema: dict[str, Any]) -> None:
    kinds = {"prompt": "string", "messages": "array"}
    schema["oneOf"] = [{"required": [name], "properties": {name: {"type": kind}}} for name, kind in kinds.items()]


class SubmitBody(Sampling, AnswerFields):
    """The body of `POST /v1/jobs`: either `prompt` or `messages`, and optional fields."""

    model_config = ConfigDict(json_schema_extra=_require_one_in_schema)

    prompt: Prompt | None = None
    messages: Messages | None = Field(
        None, description="a chat, formatted with the model's own template; send either messages or prompt"
    )
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    response_format: JobResponseFormat | None = None
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="return the log probability of each token, and this many of its most likely alternatives",
    )
    poll_grace_ms: int | None = Field(
        None, ge=0, le=MAX_MS, description="the job is canceled if it is not polled for this many ms"
    )
    metadata: Metadata | None = None
    n: CandidateCount = Field(1, description="how many answers to generate from the prompt, which is computed once")
    pick: Pick = Field(
        "mean_logprob", description="of several answers, return the likeliest one by its mean log probability, or all"
    )
    callback_url: CallbackUrl | None = None
    retrieval: Retrieval | None = Field(None, description="a collection from which passages go into the prompt")
    ticket: bool = Field(
        default=False, description="return urls.events_signed, which gives access to this job's events without a key"
    )

    @model_validator(mode="before")
    @classmethod
    def _check_sizes(cls, value: Any) -> Any:
        check_sizes(value, SIZES, messages="messages")
        return value

    @model_validator(mode="after")
    def _require_one_prompt(self) -> "SubmitBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages is required")
        return self

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        prompt: dict[str, Any] = {"prompt": self.prompt}
        if self.messages is not None:
            prompt = {"messages": [message.model_dump() for message in self.messages]}
        return build_payload(self, prompt, self.response_format, self.logprobs, self.n)


def build_payload(
    sampling: Sampling,
    prompt: dict[str, Any],
    response_format: ResponseFormat | None,
    logprobs: int | None = None,
    candidates: int = 1,
) -> dict[str, Any]:
    """Return the payload that the engine reads. `prompt` contains the payload's field `prompt` or `messages`."""
    payload = sampling.sampling() | prompt
    if logprobs is not None:
        payload["logprobs"] = logprobs
    if candidates > 1:
        payload["n"] = candidates
    if response_format is not None and response_format.type != "text":
        payload["response_format"] = response_format.model_dump(exclude_none=True, by_alias=True)
    return payload


#: The schema of a list of token ids.
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]], Field(min_length=1)]


def read_inputs(value: Any, name: str, most: int) -> list[str | list[int]]:
    """Return the value of the field `name` as a list of at most `most` texts and lists of token ids.

    The checks of token ids are calls of C functions, so that a batch of 200,000 ids takes about 10 ms. Raises
    ValueError.
    """
    is_list = isinstance(value, list)
    inputs = [value] if not is_list or _are_tokens(value) else value
    if not 1 <= len(inputs) <= most:
        raise ValueError(f"{name} contains {len(inputs)} texts; 1 to {most} are allowed")
    for i, item in enumerate(inputs):
        where = f"{name}[{i}]" if is_list else name
        if isinstance(item, str):
            if not item or "\0" in item:
                raise ValueError(f"{where} is empty or contains a NUL character (\\u0000)")
        elif not isinstance(item, list) or not _are_tokens(item):
            raise ValueError(f"{where}={quoted(item)} is neither a text nor a list of token ids")
    return inputs


def _are_tokens(items: list[Any]) -> bool:
    """Return whether a list contains token ids and nothing else; false for an empty list."""
    return (
        len(items) > 0
        # bool is a subclass of int, but true is not a token id.
        and type(items[0]) is int
        and set(map(type, items)) == {int}
        and min(items) >= 0
        and max(items) <= MAX_TOKEN_ID
    )
