"""Builds a job's answer from the chunks, or from the whole response, that the upstream sends; pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.answer_parts import without_marks

#: Fields of a message that are texts, come in pieces and are kept beside the content.
_OTHER_TEXTS = ("reasoning_content", "reasoning", "refusal")
#: The most bytes of an answer, with its tool calls, that are kept.
MAX_ANSWER_BYTES = 8 << 20
#: An answer is ended when it has more parts than this for each token that was asked for, and some more. Most servers
#: send a part for each token, and some one for each character. One that sends more ignores the length.
_PARTS_PER_TOKEN, _MORE_PARTS = 8, 64
#: Finish reasons with which a server says that it gave the answer up.
_GIVEN_UP = frozenset({"abort", "error"})
#: The longest finish reason that is passed on. Each one that is in use is shorter.
_MAX_REASON = 32


class AnswerInvalid(Exception):
    """What the upstream sent is not a chunk or a response of OpenAI's API, or the answer is too long."""


class Counts(NamedTuple):
    """The upstream's own counts of tokens; None for what it did not count."""

    prompt: int | None = None
    cached: int = 0
    completion: int | None = None


def read_counts(usage: Any) -> Counts:
    """Return the counts in the `usage` of a chunk or a response. What is no number of tokens is left out."""
    if not isinstance(usage, dict):
        return Counts()
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    prompt = _count(usage.get("prompt_tokens"))
    return Counts(prompt, min(prompt or 0, cached or 0), _count(usage.get("completion_tokens")))


@dataclass
class Answer:
    """One answer so far. `kind` is `chat` or `completion`, and `max_tokens` the length that was asked for."""

    kind: str
    max_tokens: int
    #: The most bytes of a response that is not streamed.
    max_bytes: int = MAX_ANSWER_BYTES
    parts: list[str] = field(default_factory=list)
    finish_reason: str = ""
    counts: Counts = field(default_factory=Counts)
    #: Number of chunks that had a part of the answer. Most servers send one for each token.
    chunks: int = 0
    _others: dict[str, str] = field(default_factory=dict)
    _tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    _logprobs: list[Any] = field(default_factory=list)
    _held: str = ""
    _bytes: int = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.parts)

    @property
    def completion_tokens(self) -> int:
        """The number of tokens so far: the upstream's count, or the number of chunks while it has sent none."""
        return self.chunks if self.counts.completion is None else self.counts.completion

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return self.chunks > 0

    @property
    def is_too_long(self) -> bool:
        """Whether the upstream ignores the length that was asked for."""
        return self.chunks > _PARTS_PER_TOKEN * self.max_tokens + _MORE_PARTS

    def add_chunk(self, chunk: Any) -> str | None:
        """Add one chunk of a stream. Return its new text, which may be "", or None if it has no part of the answer.

        Raises AnswerInvalid.
        """
        choice = self._first_choice(chunk)
        if choice is None:
            return None
        if self.kind == "completion":
            return self._add(choice, {"content": choice.get("text")})
        return self._add(choice, choice.get("delta"))

    def add_whole(self, response: Any) -> str:
        """Add a response that is not streamed and return its text. Raises AnswerInvalid."""
        choice = self._first_choice(response)
        if choice is None:
            raise AnswerInvalid("the upstream's response has no choice")
        whole = {"content": choice.get("text")} if self.kind == "completion" else choice.get("message")
        text = self._add(choice, whole) or ""
        self.finish_reason = self.finish_reason or "stop"
        return text

    def extra(self) -> dict[str, Any]:
        """Return what the answer has beside its text, as the job's result stores it; empty if it has nothing else."""
        others: dict[str, Any] = dict(self._others)
        if self._tool_calls:
            others["tool_calls"] = [self._tool_calls[index] for index in sorted(self._tool_calls)]
        if self._logprobs:
            others["logprobs"] = _joined_logprobs(self._logprobs)
        return {"upstream": _with_whole_characters(others)} if others else {}

    def _first_choice(self, value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            raise AnswerInvalid("the upstream sent JSON that is not an object")
        counts = read_counts(value.get("usage"))
        if counts.prompt is not None or counts.completion is not None:
            self.counts = counts
        choices = value.get("choices")
        if choices is None:
            # Some servers send usage, or a sign of life, in an object of its own.
            return None
        if not isinstance(choices, list):
            raise AnswerInvalid("the upstream sent choices that are not a list")
        first = next((one for one in choices if isinstance(one, dict) and not one.get("index")), None)
        if choices and first is None:
            raise AnswerInvalid("the upstream sent choices without a first one")
        return first

    def _add(self, choice: Mapping[str, Any], delta: Any) -> str | None:
        """Add the parts of one chunk or message; return its new text, or None if it has no part of the answer."""
        parts = delta if isinstance(delta, dict) else {}
        reason, logprobs = choice.get("finish_reason"), choice.get("logprobs")
        if isinstance(reason, str) and reason in _GIVEN_UP:
            raise AnswerInvalid(f"the upstream ended the answer with finish_reason={reason!r}")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason if len(reason) <= _MAX_REASON and reason.isprintable() else "stop"
        if isinstance(logprobs, dict):
            self._logprobs.append(logprobs)
        content, calls = parts.get("content"), parts.get("tool_calls")
        others = {name: parts[name] for name in _OTHER_TEXTS if isinstance(parts.get(name), str) and parts[name]}
        for name, piece in others.items():
            self._others[name] = self._others.get(name, "") + piece
        for call in calls if isinstance(calls, list) else ():
            self._add_tool_call(call)
        # The marks of our own answers (shared/answer_parts.py) would be read as calls of tools.
        text = without_marks(self._whole_characters(content)) if isinstance(content, str) else ""
        # Logprobs and tool calls are counted by a bound on their length, because it is their sum that must be bounded.
        self._bytes += len(text) * 4 + sum(4 * len(piece) for piece in others.values())
        self._bytes += sum(len(str(item)) for item in (calls, logprobs) if item)
        if self._bytes > MAX_ANSWER_BYTES:
            raise AnswerInvalid(f"the upstream's answer is longer than {MAX_ANSWER_BYTES} bytes")
        if not (text or others or calls or (isinstance(content, str) and content)):
            return None
        self.chunks += 1
        if text:
            self.parts.append(text)
        return text

    def _add_tool_call(self, piece: Any) -> None:
        """Merge a piece of a tool call with the earlier pieces of the same index; the texts of its function add up."""
        if not isinstance(piece, dict):
            raise AnswerInvalid("the upstream sent a tool call that is not an object")
        index = piece.get("index", len(self._tool_calls))
        if not isinstance(index, int) or not 0 <= index < 1024:
            raise AnswerInvalid("the upstream sent a tool call whose index is not a number from 0 to 1023")
        call = self._tool_calls.setdefault(index, {"id": None, "type": "function", "function": {}})
        for name in ("id", "type"):
            if isinstance(piece.get(name), str):
                call[name] = piece[name]
        function = piece.get("function")
        for name, value in (function if isinstance(function, dict) else {}).items():
            if isinstance(value, str):
                call["function"][name] = call["function"].get(name, "") + value

    def _whole_characters(self, piece: str) -> str:
        """Return the text, with half of a surrogate pair at its end held back until the other half arrives.

        A server that escapes its JSON may put the two halves into two chunks. A half alone becomes U+FFFD.
        """
        text = self._held + piece
        self._held = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        text = text[: len(text) - len(self._held)]
        if text.isascii():
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count(value: Any) -> int | None:
    # bool is a subclass of int, but true is no number of tokens.
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _with_whole_characters(value: dict[str, Any]) -> dict[str, Any]:
    """Return the same JSON, in which halves of characters are joined and a half alone is U+FFFD, as UTF-8 needs it."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isascii():
        return value
    cleaned: dict[str, Any] = json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    return cleaned


def _joined_logprobs(chunks: list[Any]) -> dict[str, Any]:
    """Join the logprobs of all chunks: each of their fields is a list with an item for each token."""
    joined: dict[str, Any] = {}
    for chunk in chunks:
        for name, items in chunk.items():
            if isinstance(items, list):
                joined.setdefault(name, []).extend(items)
            else:
                joined.setdefault(name, items)
    return joined
