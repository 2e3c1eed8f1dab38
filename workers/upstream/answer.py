"""Builds a job's answer from the chunks, or from the whole response, that the upstream sends; pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.answer_parts import without_marks
from shared.jobs.outcomes import FinishReason
from workers.upstream.call_places import CallPlaces
from workers.upstream.invalid import AnswerInvalid
from workers.upstream.parts_writer import OrderInvalid, PartsWriter, WholeCharacters
from workers.upstream.pieces import CallPiece, Pieces, read_finish_reason, read_index, read_pieces, says_more

#: The most bytes of an answer, with its tool calls, that are kept.
MAX_ANSWER_BYTES = 8 << 20


#: The fields of a response and of a choice that the client gets from Penstock, or that are read here.
_READ = {
    "response": frozenset(
        {"choices", "created", "degraded", "error", "id", "model", "object", "queue", "system_fingerprint", "usage"}
    ),
    "choice": frozenset({"delta", "error", "finish_reason", "index", "logprobs", "mean_logprob", "message", "text"}),
    "message": frozenset(("content",)),
}


class Counts(NamedTuple):
    """The upstream's own counts of tokens; None for what it did not count."""

    prompt: int | None = None
    cached: int = 0
    completion: int | None = None
    #: How many of the completion's tokens are reasoning.
    reasoning: int = 0


def read_counts(usage: Any) -> Counts:
    """Return the counts in the `usage` of a chunk or a response. What is no number of tokens is left out.

    Nor is 0 a number of prompt tokens: servers that have not counted yet send it.
    """
    if not isinstance(usage, dict):
        return Counts()
    prompt, completion = _count(usage.get("prompt_tokens")) or None, _count(usage.get("completion_tokens"))
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
    #: Whether the fields that are not read here are kept for the client.
    keeps_rest: bool = False
    #: The most bytes of a response that is not streamed.
    max_bytes: int = MAX_ANSWER_BYTES
    parts: list[str] = field(default_factory=list)
    finish_reason: str = ""
    counts: Counts = field(default_factory=Counts)
    #: Number of chunks that had a part of the answer. Most servers send one for each token.
    chunks: int = 0
    #: Whether the upstream has begun to answer: some send a role first, and hold back what may be a call of a tool.
    has_role: bool = False
    #: Whether the upstream ignores the length: after it, there was a chunk, which is part of the answer, and another.
    is_too_long: bool = False
    #: How many chunks with a part had arrived when the upstream last counted tokens.
    _counted_chunks: int = 0
    _others: dict[str, str] = field(default_factory=dict)
    _tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: The other fields of the message, of the choice and of the response.
    _rest: dict[str, dict[str, Any]] = field(default_factory=lambda: {"message": {}, "choice": {}, "response": {}})
    _places: CallPlaces = field(default_factory=CallPlaces)
    #: The field of a choice that has the parts of this answer; "" until one of them had a part.
    _field: str = ""
    #: Whether a chunk was a message as in OpenAI's API, and whether one had something else instead.
    _is_message: bool = False
    _is_strange: bool = False
    _logprobs: list[Any] = field(default_factory=list)
    _characters: WholeCharacters = field(default_factory=WholeCharacters)
    _bytes: int = 0

    @property
    def text(self) -> str:
        """The text so far. When the answer is complete, its last part has an end; a part that was cut has none."""
        is_complete = self.finish_reason not in {"", FinishReason.LENGTH, FinishReason.CONTENT_FILTER}
        return "".join(self.parts) + ("" if self.writer is None else self.writer.rest(is_complete=is_complete))

    @property
    def completion_tokens(self) -> int:
        """The number of tokens so far: the upstream's last count, unless more chunks than that have a part by now."""
        counted = self.counts.completion or 0
        return counted if self.chunks == self._counted_chunks else max(counted, self.chunks)

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        return self.chunks > 0

    def add_chunk(self, chunk: Any) -> str | None:
        """Add one chunk of a stream. Return its new text, which may be "", or None if it has no part of the answer.

        Raises AnswerInvalid.
        """
        choice, text = self._first_choice(chunk), None
        self._keep_rest("response", chunk)
        if choice is not None:
            fields = ("text", "delta", "message") if self.kind == "completion" else ("delta", "message", "text")
            text = self._add(choice, fields)
        self._count(chunk.get("usage"))
        return text

    def add_whole(self, response: Any) -> str:
        """Add a response that is not streamed and return its text. Raises AnswerInvalid."""
        choice = self._first_choice(response)
        if choice is None:
            raise AnswerInvalid("the upstream's response has no choice")
        fields = ("text", "message", "delta") if self.kind == "completion" else ("message", "delta", "text")
        self._keep_rest("response", response)
        text = self._add({"finish_reason": "stop"} | _without_nulls(choice), fields, is_whole=True) or ""
        self._count(response.get("usage"))
        return text

    def _count(self, usage: Any) -> None:
        """Take over the upstream's counts. Once an answer has begun, a count of 0 tokens is ignored."""
        counts = read_counts(usage)
        if counts.completion:
            self._counted_chunks = self.chunks
        elif self.has_begun:
            counts = counts._replace(completion=self.counts.completion)
        if counts.prompt is not None or counts.completion is not None:
            self.counts = counts if counts.prompt is not None else counts._replace(prompt=self.counts.prompt)
        self.is_too_long = self.is_too_long or (not self.finish_reason and self.completion_tokens > self.max_tokens + 1)

    def end(self, reason: str) -> None:
        """Note that nothing more comes, and why if the upstream has not said it. Raises AnswerInvalid for no answer."""
        if not (self.finish_reason or self.has_begun):
            raise AnswerInvalid("the upstream ended the stream without an answer")
        self._note_reason(self.finish_reason or reason)

    def extra(self) -> dict[str, Any]:
        """Return what the answer has beside its text, as the job's result stores it; empty if it has nothing else."""
        others: dict[str, Any] = dict(self._others)
        if self._tool_calls:
            others["tool_calls"] = [self._tool_calls[index] for index in sorted(self._tool_calls)]
        if self._logprobs:
            others["logprobs"] = _joined_logprobs(self._logprobs)
        others = {**self._rest["message"], **others}
        others |= {name: self._rest[name] for name in ("choice", "response") if self._rest[name]}
        beside = {"upstream": _with_whole_characters(others)} if others else {}
        return beside | ({"reasoning_tokens": self.counts.reasoning} if self.counts.reasoning else {})

    def _first_choice(self, value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            raise AnswerInvalid("the upstream sent JSON that is not an object")
        choices = value.get("choices")
        if choices is None:
            # Some servers send usage, or a sign of life, in an object of its own.
            return None
        if not isinstance(choices, list):
            raise AnswerInvalid("the upstream sent choices that are not a list")
        first = next(
            (one for one in choices if isinstance(one, dict) and not read_index(one.get("index"), "a choice")), None
        )
        if choices and first is None:
            raise AnswerInvalid("the upstream sent choices without a first one")
        return first

    def _add(self, choice: Mapping[str, Any], fields: Sequence[str], *, is_whole: bool = False) -> str | None:
        """Add the parts of one chunk or response; return its new text, or None if it has no part of the answer."""
        pieces, logprobs = self._read(choice, fields), choice.get("logprobs")
        if pieces.has_part and not is_whole and self.completion_tokens > self.max_tokens:
            self.is_too_long = True
            return None
        if isinstance(logprobs, dict):
            self._logprobs.append(logprobs)
        self._keep_rest("choice", choice)
        self._keep_rest("message", pieces.others)
        calls = [self._places.place(piece, is_whole=is_whole) for piece in pieces.calls]
        text = self._keep(pieces, calls) if self.writer is None else self._write(self.writer, pieces, calls)
        # Logprobs and tool calls are counted by a bound on their length, because it is their sum that must be bounded.
        # The writer may hold content back: then it is not in the text yet.
        self._bytes += 4 * (max(len(text), len(pieces.content)) + len(pieces.reasoning) + len(pieces.refusal))
        self._bytes += sum(len(str(item)) for item in (pieces.calls, pieces.others, logprobs) if item)
        if self._bytes > MAX_ANSWER_BYTES:
            raise AnswerInvalid(f"the upstream's answer is longer than {MAX_ANSWER_BYTES} bytes")
        if pieces.has_part:
            self.chunks += 1
        if text:
            self.parts.append(text)
        self._note_reason(read_finish_reason(choice.get("finish_reason")))
        return text if pieces.has_part else None

    def _read(self, choice: Mapping[str, Any], fields: Sequence[str]) -> Pieces:
        """Read the first of the fields that has a part, and from then on only this one: some servers send two."""
        given = [name for name in ([self._field] if self._field else fields) if choice.get(name) is not None]
        read = {name: read_pieces(choice[name]) for name in given}
        name = next((name for name in given if read[name].has_part), given[0] if given else "")
        pieces = read.get(name, Pieces())
        if pieces.has_part:
            self._field = name
        self.has_role = self.has_role or pieces.has_role
        self._is_message = self._is_message or pieces.is_message
        self._is_strange = self._is_strange or bool(pieces.others) or says_more(choice)
        return pieces

    def _note_reason(self, reason: str) -> None:
        """Note why the answer ended, "" for nothing. Raises AnswerInvalid if nothing of the answer was understood."""
        if not reason:
            return
        if not self.has_begun and (self._is_strange or not self._is_message):
            raise AnswerInvalid("the upstream ended the answer without a part in OpenAI's format")
        if reason in {"stop", "tool_calls"}:
            reason = "tool_calls" if self._places.number else "stop"
        self.finish_reason = reason

    def _keep_rest(self, of: str, fields: Mapping[str, Any]) -> None:
        """Keep what the upstream has sent beside the answer, such as `token_ids`: lists are joined, others replaced."""
        if not self.keeps_rest:
            return
        kept = self._rest[of]
        for name, value in fields.items():
            if value is None or name in _READ[of]:
                continue
            self._bytes += len(str(value))
            both = kept.get(name), value
            joins = (
                isinstance(value, list | str)
                and type(both[0]) is type(value)
                and (of != "response" or isinstance(value, list))
            )
            kept[name] = both[0] + value if joins else value

    def _keep(self, pieces: Pieces, calls: Sequence[tuple[int, CallPiece]]) -> str:
        """Keep what is not content beside the text, and return the new text."""
        others = {pieces.reasoning_field: pieces.reasoning, "refusal": pieces.refusal}
        for name, text in others.items():
            if text:
                self._others[name] = self._others.get(name, "") + text
        for number, piece in calls:
            new: dict[str, Any] = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            call = self._tool_calls.setdefault(number, new)
            call["id"] = piece.id or None
            call["function"]["name"] += piece.name
            call["function"]["arguments"] += piece.arguments
        # The marks of our own answers (shared/answer_parts.py) would be read as calls of tools.
        return without_marks(self._characters.add(pieces.content))

    def _write(self, writer: PartsWriter, pieces: Pieces, calls: Sequence[tuple[int, CallPiece]]) -> str:
        """Return the new text with its parts. A refusal is content, unless the client's API has a field for it."""
        text = writer.reasoning(pieces.reasoning, pieces.reasoning_field) + writer.content(pieces.content)
        if writer.keeps_sources:
            self._others |= {"refusal": self._others.get("refusal", "") + pieces.refusal} if pieces.refusal else {}
        else:
            text += writer.content(pieces.refusal)
        for number, piece in calls:
            try:
                text += writer.call(number, piece.name, piece.arguments, piece.id)
            except OrderInvalid as error:
                raise AnswerInvalid(str(error)) from None
        return text


def _without_nulls(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in choice.items() if value is not None}


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
