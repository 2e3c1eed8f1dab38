"""Validate the body of `POST /v1/responses`, with the rules of web/openai/accepted_fields.py; pure functions."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from web.api.body import NulFreeText, Prompt, require_text
from web.api.body_sizes import MAX_FIELDS, check_sizes
from web.api.ignored import note_ignored
from web.api.request_schema import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_TOKENS,
    Messages,
    Metadata,
    build_payload,
)
from web.api.response_format import ResponseFormat, check_keywords
from web.openai.accepted_fields import VERBOSITIES, shown, supported_fields, unsupported
from web.openai.chat_schema import OPENAI_SIZES, OpenAISampling, normalize_message

#: Fields that are accepted only with these values, in addition to the fields in `_NEUTRAL` of accepted_fields.py.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "context_management": ([],),
    "truncation": ("disabled",),
}
#: Fields that are accepted and ignored, in addition to `_IGNORED` of accepted_fields.py. The first bounds the calls of
#: tools that OpenAI's servers run.
_IGNORED = frozenset({"max_tool_calls"})
_SIZES = OPENAI_SIZES | {"input": MAX_MESSAGES, "metadata": MAX_METADATA}
_SIZES |= dict.fromkeys(("include", "reasoning", "text"), MAX_FIELDS)
#: The value of `include` that asks for something.
LOGPROBS = "message.output_text.logprobs"
#: The values of `include` that are ignored, because no answer and no input here has the items and parts that they name.
_NOT_INCLUDED = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
#: The longest schema, as JSON, that response objects repeat. It is kept with the job, and read whenever the job is.
_MAX_REPEATED_SCHEMA = 8_192
#: Fields of an input item that are ignored. They are sent by clients whose input repeats an item of a response.
_ITEM_IGNORED = frozenset({"id", "phase", "status", "type"})


def check_include(name: Any) -> bool:
    """Return whether a name in `include` asks for something; raise ApiError(unsupported_parameter) for an unknown one.

    Clients ask for encrypted reasoning, for example, to repeat it in their next request. Answers here contain none.
    """
    if name == LOGPROBS:
        return True
    if not isinstance(name, str) or name not in _NOT_INCLUDED:
        raise unsupported("include", f"{shown(name)!r} was requested, and only {LOGPROBS!r} is supported")
    note_ignored("include")
    return False


def _check_includes(value: Any) -> Any:
    return [name for name in value if check_include(name)] if isinstance(value, list) else value


def input_text(value: Any) -> Any:
    """Return an input that is a text as a list with one message; any other value is returned unchanged."""
    return [{"role": "user", "content": require_text(value)}] if isinstance(value, str) else value


def _as_messages(value: Any) -> Any:
    if isinstance(value, list):
        return [input_message(item, f"input[{i}]") for i, item in enumerate(value)]
    return input_text(value)


def input_message(item: Any, where: str) -> Any:
    """Convert an input item to a message. Raises ApiError, which names the item by its path in the body, `where`."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type") or "message"
    if kind != "message":
        raise unsupported(f"{where}.type", f"type={shown(kind)!r}; only messages are supported")
    return normalize_message({name: given for name, given in item.items() if name not in _ITEM_IGNORED}, where)


def _as_response_format(text: Any) -> Any:
    """Convert `text.format` to the response_format of the other routes, which nests the schema one level deeper."""
    if not isinstance(text, dict):
        return text
    for name, given in text.items():
        if name == "verbosity" and given in VERBOSITIES:
            note_ignored("text.verbosity")
        elif name != "format" and given is not None:
            raise unsupported(f"text.{shown(name)}", f"{shown(name)}={shown(given)!r} was requested")
    given = text.get("format") or {"type": "text"}
    kind = given.get("type") if isinstance(given, dict) else given
    if kind not in ("text", "json_object", "json_schema"):
        raise unsupported("text.format", f"format={shown(given)!r} was requested")
    if kind != "json_schema":
        return {"type": kind}
    if isinstance(given.get("schema"), dict):
        check_keywords(given["schema"], "text.format")
    return {"type": kind, "json_schema": {name: part for name, part in given.items() if name != "type"}}


class ResponsesBody(OpenAISampling):
    """The body of `POST /v1/responses`."""

    input: Annotated[
        Messages,
        Field(description="a text, or a list of messages"),
        BeforeValidator(
            _as_messages,
            json_schema_input_type=Prompt
            | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)],
        ),
    ]
    instructions: NulFreeText | None = Field(None, description="a system message that precedes the input")
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    metadata: Metadata | None = None
    text: Annotated[
        ResponseFormat | None,
        Field(description="format: text, json_object or json_schema"),
        BeforeValidator(_as_response_format, json_schema_input_type=dict[str, Any] | None),
    ] = None
    include: Annotated[list[str], BeforeValidator(_check_includes)] = Field([], description=f"empty, or {LOGPROBS}")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="how many alternatives to return for each token; requires include"
    )
    background: bool = Field(default=False, description="return at once; the job does not depend on the connection")
    previous_response_id: Annotated[NulFreeText, Field(max_length=200)] | None = Field(
        None, description="the response whose conversation the input continues; its instructions are not repeated"
    )
    #: In OpenAI's API, the default is true.
    store: bool = Field(default=True, description="false: the response cannot be read or continued later")

    @model_validator(mode="before")
    @classmethod
    def _keep_supported_fields(cls, value: Any) -> Any:
        check_sizes(value, _SIZES, messages="input")
        if not isinstance(value, dict):
            return value
        known = frozenset(cls.model_fields)
        return supported_fields(value, known, more_ignored=_IGNORED, more_neutral=_NEUTRAL)

    @model_validator(mode="after")
    def _require_include(self) -> "ResponsesBody":
        if self.top_logprobs and not self.include:
            raise ValueError(f"top_logprobs={self.top_logprobs} requires include to contain {LOGPROBS}")
        return self

    @model_validator(mode="after")
    def _require_store(self) -> "ResponsesBody":
        if self.background and not self.store:
            raise ValueError("store=false is not valid with background=true, whose response is read later")
        return self

    @property
    def _alternatives(self) -> int | None:
        """How many alternatives to return for each token; None if no logprobs were requested."""
        return (self.top_logprobs or 0) if self.include else None

    def payload(self) -> dict[str, Any]:
        """Return the payload that the engine reads."""
        messages = [message.model_dump() for message in self.input]
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        wanted = self.answer_format(self.text)
        return build_payload(self, {"messages": [*system, *messages]}, wanted, self._alternatives)

    def form(self) -> dict[str, Any]:
        """Return the fields of the request that response objects repeat: numbers, names and the answer's schema."""
        return {
            "api": "responses",
            "background": self.background,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_output_tokens": self.max_output_tokens,
            "format": self.text.type if self.text else "text",
            "top_logprobs": self._alternatives,
            "previous": self.previous_response_id,
            "store": self.store,
            "instructed": bool(self.instructions),
        } | self._schema_form()

    def _schema_form(self) -> dict[str, Any]:
        """Return the schema of the answer, with its name and options, unless it is missing or too long."""
        schema = self.text.json_schema if self.text else None
        return {"schema": schema} if schema and len(json.dumps(schema)) <= _MAX_REPEATED_SCHEMA else {}
