"""Validate the bodies of OpenAI's routes for a model that an upstream serves; pure functions.

Such a body is passed on whole: with tools, images and whatever Penstock does not know. Only what admission, the stream
and the answer need is validated here, and the upstream validates the rest.
"""

from abc import abstractmethod
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from web.api.body import check_sizes, validated
from web.api.candidates import CandidateCount
from web.api.request_schema import MAX_MESSAGES, MAX_TOKENS, AnswerFields
from web.api.retrieval_field import Retrieval
from web.openai.accepted_fields import unsupported
from web.openai.chat_schema import STRUCTURED, Prompts, StreamOptions, check_candidates

#: Fields that no upstream receives as they are: Penstock's own, and those that the worker sets.
_OWN = frozenset({*AnswerFields.model_fields, "max_tokens", "messages", "n", "prompt", "stream", "stream_options"})
#: Other servers' names of max_tokens. The upstream receives the length only in its own field.
_LENGTHS = ("n_predict", "max_new_tokens", "num_predict", "max_output_tokens", "max_gen_len")
#: Fields with which some servers generate more answers than `n`. Only these values do not.
_SINGLE: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 0, 1),
    "num_return_sequences": (None, 1),
    "num_beams": (None, 1),
    "use_beam_search": (None, False),
}


class ForwardedStreamOptions(StreamOptions):
    """The options of a stream that Penstock reads. The upstream does not receive them."""

    model_config = ConfigDict(extra="ignore")


class ForwardedBody(AnswerFields):
    """The fields that Penstock reads of a body that it passes on."""

    model_config = ConfigDict(extra="allow")
    #: The fields that the upstream does not receive as they are.
    own: ClassVar[frozenset[str]] = _OWN

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    n: CandidateCount = 1
    stream: bool | None = None
    stream_options: ForwardedStreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _check(cls, value: Any) -> Any:
        check_sizes(value, {"messages": MAX_MESSAGES}, messages="messages")
        if not isinstance(value, dict):
            return value
        for name, single in _SINGLE.items():
            if value.get(name) not in (*single, value.get("n") if name == "best_of" else None):
                raise unsupported(name, "an upstream is asked for n answers, and all of them are returned")
        return {name: given for name, given in value.items() if given is not None or name not in cls.own}

    @property
    def requested_max_tokens(self) -> int | None:
        """The maximum length of the answer in tokens, or None if the client named no maximum."""
        more = self.model_extra or {}
        others = [more[name] for name in _LENGTHS if type(more.get(name)) is int and 1 <= more[name] <= MAX_TOKENS]
        named = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return min(others, default=None) if named is None else named

    @property
    def candidates(self) -> int:
        """How many answers are generated in all."""
        return self.n

    @property
    @abstractmethod
    def prompt_fields(self) -> dict[str, Any]:
        """The fields of the payload with the prompt."""

    @property
    def may_be_cut(self) -> bool:
        """Whether a shortened answer is useful: not if it has to follow a format or may call tools."""
        return self.degrade and not (self.model_extra or {}).keys() & {"response_format", "tools", *STRUCTURED}

    def payload(self) -> dict[str, Any]:
        """Return the payload that the worker reads: the prompt, and in `forward` all that is passed on as it is."""
        sent = self.model_dump(exclude_unset=True)
        several = {"n": self.candidates} if self.candidates > 1 else {}
        return self.prompt_fields | several | {"forward": {name: sent[name] for name in sent if name not in self.own}}


class ForwardedChat(ForwardedBody):
    """The body of `POST /v1/chat/completions`."""

    own = _OWN | {"retrieval"}

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    retrieval: Retrieval | None = None

    @property
    def prompt_fields(self) -> dict[str, Any]:
        """The messages. A worker of an earlier version does not know `n`, and rejects a job with `prompts`."""
        return {"messages": self.messages} | ({"prompts": []} if self.candidates > 1 else {})


class ForwardedCompletion(ForwardedBody):
    """The body of `POST /v1/completions`."""

    prompt: Prompts

    @model_validator(mode="after")
    def _check_candidates(self) -> "ForwardedCompletion":
        check_candidates(self.n, len(self.prompt))
        return self

    @property
    def candidates(self) -> int:
        """How many answers are generated in all. Those to the first prompt come first."""
        return len(self.prompt) * self.n

    @property
    def prompt_fields(self) -> dict[str, Any]:
        """The prompt if one text is to be answered once, else the prompts."""
        first = self.prompt[0]
        is_one = self.candidates == 1 and isinstance(first, str)
        return {"prompt": first} if is_one else {"prompts": self.prompt}


def read_forwarded(value: Any, *, chat: bool) -> ForwardedBody:
    """Return the validated body. Raises ApiError."""
    return validated(ForwardedChat if chat else ForwardedCompletion, value)
