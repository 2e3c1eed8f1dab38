"""Builds a job's answer from the chunks, or from the whole response, that the upstream sends; pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.answer_parts import without_marks
from shared.jobs.outcomes import FinishReason
from workers.upstream.answers.parts_writer import OrderInvalid, PartsWriter, WholeCharacters

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
    #: How many of the completion's tokens are reasoning.
    reasoning: int = 0


def read_counts(usage: Any) -> Counts:
    """Return the counts in the `usage` of a chunk or a response. What is no number of tokens is left out."""
    if not isinstance(usage, dict):
        return Counts()
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
    reasoning = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    return Counts(prompt, min(prompt or 0, cached), completion, min(completion or 0, reasoning))


@dataclass
class Answer:
    """One answer so far. `kind` is `chat` or `completion`, and `max_tokens` the length that was asked for.

    With a `writer`, reasoning and calls of tools become parts of the text. Otherwise they are kept beside it.
    """

    kind: str
    max_tokens: int
    writer: PartsWriter | None = None
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
    _characters: WholeCharacters = field(default_factory=WholeCharacters)
    _bytes: int = 0

    @property
    def text(self) -> str:
        """The text so far. When the answer is complete, its last part has an end; a part that was cut has none."""
        is_complete = self.finish_reason not in {"", FinishReason.LENGTH}
        return "".join(self.parts) + ("" if self.writer is None else self.writer.rest(is_complete=is_complete))

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
        beside = {"upstream": _with_whole_characters(others)} if others else {}
        return beside | ({"reasoning_tokens": self.counts.reasoning} if self.counts.reasoning else {})

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
        calls = calls if isinstance(calls, list) else []
        content = content if isinstance(content, str) else ""
        if self.writer is None:
            text = self._keep(content, others, calls)
        else:
            text = self._write(self.writer, content, others, calls)
        # Logprobs and tool calls are counted by a bound on their length, because it is their sum that must be bounded.
        # The writer may hold content back: then it is not in the text yet.
        self._bytes += max(len(text), len(content)) * 4 + sum(4 * len(piece) for piece in others.values())
        self._bytes += sum(len(str(item)) for item in (calls, logprobs) if item)
        if self._bytes > MAX_ANSWER_BYTES:
            raise AnswerInvalid(f"the upstream's answer is longer than {MAX_ANSWER_BYTES} bytes")
        if not (text or others or calls or content):
            return None
        self.chunks += 1
        if text:
            self.parts.append(text)
        return text

    def _keep(self, content: str, others: Mapping[str, str], calls: list[Any]) -> str:
        """Keep what is not content beside the text, and return the new text."""
        for name, piece in others.items():
            self._others[name] = self._others.get(name, "") + piece
        for call in calls:
            self._add_tool_call(call)
        # The marks of our own answers (shared/answer_parts.py) would be read as calls of tools.
        return without_marks(self._characters.add(content))

    def _write(self, writer: PartsWriter, content: str, others: Mapping[str, str], calls: list[Any]) -> str:
        """Return the new text with its parts. A refusal is content, because it says what the model answers."""
        text = writer.reasoning(others.get("reasoning_content") or others.get("reasoning") or "")
        text += writer.content(content) + writer.content(others.get("refusal", ""))
        for call in calls:
            index, function = self._place_of(call, writer.n_calls), call.get("function")
            given = function if isinstance(function, dict) else {}
            name, arguments = (given.get(one) for one in ("name", "arguments"))
            try:
                text += writer.call(index, *(one if isinstance(one, str) else "" for one in (name, arguments)))
            except OrderInvalid as error:
                raise AnswerInvalid(str(error)) from None
        return text

    def _place_of(self, piece: Any, next_index: int) -> int:
        """Return the index of the call that a piece belongs to; without one, the piece is a call of its own."""
        if not isinstance(piece, dict):
            raise AnswerInvalid("the upstream sent a tool call that is not an object")
        index = piece.get("index", next_index)
        if not isinstance(index, int) or not 0 <= index < 1024:
            raise AnswerInvalid("the upstream sent a tool call whose index is not a number from 0 to 1023")
        return index

    def _add_tool_call(self, piece: Any) -> None:
        """Merge a piece of a tool call with the earlier pieces of the same index; the texts of its function add up."""
        index = self._place_of(piece, len(self._tool_calls))
        call = self._tool_calls.setdefault(index, {"id": None, "type": "function", "function": {}})
        for name in ("id", "type"):
            if isinstance(piece.get(name), str):
                call[name] = piece[name]
        function = piece.get("function")
        for name, value in (function if isinstance(function, dict) else {}).items():
            if isinstance(value, str):
                call["function"][name] = call["function"].get(name, "") + value


def _count(value: Any) -> int | None:
    # bool is a subclass of int, but true is no number of tokens.
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _detail(usage: dict[str, Any], group: str, name: str) -> int:
    details = usage.get(group)
    return (_count(details.get(name)) or 0) if isinstance(details, dict) else 0


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
