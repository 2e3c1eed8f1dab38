"""Reads what one chunk or message of an upstream says, in each way in which servers write it; pure functions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The fields in which servers send reasoning. Some send the same text in two of them.
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
#: The other fields of a message that are read here, or say nothing about the answer.
_KNOWN = frozenset({*REASONING_FIELDS, "content", "function_call", "name", "refusal", "role", "tool_calls"})
#: Fields of a choice that do not belong to the answer.
_OF_CHOICES = frozenset(
    {
        *("content_filter_results", "delta", "finish_reason", "index", "logprobs", "matched_stop", "message"),
        *("native_finish_reason", "prompt_logprobs", "prompt_token_ids", "stop_reason", "text", "token_ids"),
    }
)
#: Fields that make a message an answer even if it has no text.
_MEDIA = frozenset({"audio", "images"})
#: Types of the parts of a content that are reasoning, and the fields of a part that have its text.
_THOUGHTS = frozenset({"reasoning", "reasoning_text", "thinking", "thought"})
_PART_TEXTS = ("text", "thinking", "reasoning", "content", "value", "summary")
#: Parts are read to this depth: Mistral's thinking is a list of parts inside a part.
_MAX_DEPTH = 4
#: The most calls of one answer.
MAX_CALLS = 1024

#: Why an answer ended, as servers say it → the same in OpenAI's terms. A reason that is not listed here is `stop`.
_REASONS = {
    "length": "length",
    "max_length": "length",
    "max_new_tokens": "length",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "blocklist": "content_filter",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "prohibited_content": "content_filter",
    "recitation": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
    "spii": "content_filter",
}
#: Finish reasons of servers that gave the answer up.
_GIVEN_UP = frozenset({"abort", "cancelled", "error"})


class AnswerInvalid(Exception):
    """The upstream has not sent a chunk or a response of OpenAI's API, or the answer is too long."""


class ChoicesMissing(Exception):
    """The upstream has ended its answer with fewer choices than were asked for."""

    def __init__(self, given: int, asked: int) -> None:
        super().__init__(f"the upstream gave {given} of the {asked} answers that were asked for")


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call of a tool. `index` and `id` are the upstream's; None and "" if it names none."""

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Pieces:
    """The addition of a chunk or a message to the answer."""

    content: str = ""
    reasoning: str = ""
    #: The upstream's name of the field with the reasoning.
    reasoning_field: str = ""
    refusal: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    #: Whether the message names its role, as the first one does.
    has_role: bool = False
    #: Whether the message has a field that a message of OpenAI's API has, even if it is empty.
    is_message: bool = False
    #: The fields that are not read here and are not empty.
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def has_part(self) -> bool:
        return bool(
            self.content or self.reasoning or self.refusal or self.calls or any(name in _MEDIA for name in self.others)
        )


def read_pieces(message: Any) -> Pieces:
    """Return what a delta or a message says. Raises AnswerInvalid."""
    pieces = Pieces()
    if isinstance(message, str):
        pieces.content, pieces.is_message = message, True
    if not isinstance(message, dict):
        return pieces
    pieces.is_message = not message or not _KNOWN.isdisjoint(message)
    pieces.has_role = bool(message.get("role"))
    pieces.others = {name: value for name, value in message.items() if name not in _KNOWN and _says(value)}
    _read_content(message.get("content"), pieces, depth=0)
    for name in REASONING_FIELDS:
        if not pieces.reasoning and (text := _text_of(message.get(name), depth=0)):
            pieces.reasoning, pieces.reasoning_field = text, name
    if isinstance(message.get("refusal"), str):
        pieces.refusal += message["refusal"]
    calls = message.get("tool_calls") or []
    pieces.calls += [_read_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    if isinstance(legacy := message.get("function_call"), dict) and legacy:
        pieces.calls.append(_read_call({"function": legacy}))
    return pieces


def says_more(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice has a field that may be an answer in a form that is not read here."""
    return any(
        name not in _OF_CHOICES and isinstance(value, str | list | dict) and _says(value)
        for name, value in choice.items()
    )


def read_finish_reason(value: Any) -> str:
    """Return a finish reason in OpenAI's terms, "" for none. Raises AnswerInvalid for an answer that was given up."""
    if not isinstance(value, str) or not value:
        return ""
    if value.lower() in _GIVEN_UP:
        raise AnswerInvalid(f"the upstream ended the answer with finish_reason={value!r}")
    return _REASONS.get(value.lower(), "stop")


def read_index(value: Any, of: str) -> int | None:
    """Return the index of a choice or of a call, as `of` says; None without one. Raises AnswerInvalid."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 5:
        value = int(value)
    if type(value) is not int or not 0 <= value < MAX_CALLS:
        raise AnswerInvalid(f"the upstream sent {of} whose index is not a number from 0 to {MAX_CALLS - 1}")
    return value


def _read_call(call: Any) -> CallPiece:
    if not isinstance(call, dict):
        raise AnswerInvalid("the upstream sent a tool call that is not an object")
    given = call.get("function")
    function: Mapping[str, Any] = given if isinstance(given, dict) else call
    return CallPiece(
        read_index(call.get("index"), "a tool call"),
        _identifier(call.get("id")),
        _identifier(function.get("name")),
        _as_arguments(function.get("arguments", function.get("parameters"))),
    )


def _read_content(content: Any, pieces: Pieces, *, depth: int) -> None:
    if isinstance(content, list) and depth < _MAX_DEPTH:
        for part in content:
            _read_content(part, pieces, depth=depth + 1)
    elif isinstance(content, str):
        pieces.content += content
    elif isinstance(content, dict):
        _read_part(content, pieces, depth=depth)
    elif _says(content):
        pieces.others["content"] = content


def _read_part(part: dict[str, Any], pieces: Pieces, *, depth: int) -> None:
    kind = part.get("type")
    if kind in _THOUGHTS:
        pieces.reasoning += _text_of(part, depth=depth)
        pieces.reasoning_field = "reasoning_content"
    elif kind == "refusal" and isinstance(part.get("refusal"), str):
        pieces.refusal += part["refusal"]
    elif kind == "tool_use":
        arguments = _as_arguments(part.get("input"))
        pieces.calls.append(CallPiece(None, _identifier(part.get("id")), _identifier(part.get("name")), arguments))
    elif kind in {"function", "function_call", "tool_call"}:
        pieces.calls.append(_read_call(part))
    elif kind in {None, "output_text", "text"}:
        pieces.content += _text_of(part, depth=depth)
    elif _says(part):
        pieces.others.setdefault("content", []).append(part)


def _text_of(value: Any, *, depth: int) -> str:
    if isinstance(value, str) or depth >= _MAX_DEPTH:
        return value if isinstance(value, str) else ""
    if isinstance(value, list):
        return "".join(_text_of(part, depth=depth + 1) for part in value)
    if isinstance(value, dict):
        return next((text for name in _PART_TEXTS if (text := _text_of(value.get(name), depth=depth + 1))), "")
    return ""


def _as_arguments(value: Any) -> str:
    """Return arguments as the text that OpenAI's API has: some servers send the object itself."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise AnswerInvalid("the upstream sent arguments that are nested too deeply") from None


def _identifier(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _says(value: Any, depth: int = 0) -> bool:
    """Return whether a field has a value that may be a part of an answer: a proxy's object full of nulls does not."""
    if isinstance(value, dict | list) and depth < _MAX_DEPTH:
        return any(_says(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value))
    return value not in (None, "", False)
