"""Builds one choice of an upstream's answer from its chunks, or from the whole choice; pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.answer_parts import without_marks
from shared.jobs.outcomes import FinishReason
from workers.upstream.call_places import CallPlaces
from workers.upstream.parts_writer import OrderInvalid, PartsWriter, WholeCharacters, is_plain
from workers.upstream.pieces import AnswerInvalid, CallPiece, Pieces, read_finish_reason, read_pieces, says_more

#: The fields of a choice and of its message that the client gets from Penstock, or that are read here.
_READ_OF_CHOICES = frozenset({"delta", "error", "finish_reason", "index", "logprobs", "message", "text"})
_READ_OF_MESSAGES = frozenset(("content",))


@dataclass
class AnswerChoice:
    """One choice so far. `kind` is `chat` or `completion`.

    With a `writer`, reasoning and calls of tools become parts of the text. Otherwise they are kept beside it.
    """

    kind: str
    writer: PartsWriter | None = None
    #: Whether the fields that are not read here are kept for the client.
    keeps_rest: bool = False
    parts: list[str] = field(default_factory=list)
    finish_reason: str = ""
    #: Number of chunks that had a part of the choice. Most servers send one for each token.
    chunks: int = 0
    #: Whether the upstream has begun this choice: some send a role first, and hold back what may be a call of a tool.
    has_role: bool = False
    #: Whether the upstream continues the choice, which has ended at its length.
    runs_on: bool = False
    #: A bound on the size of everything that is kept.
    size: int = 0
    _others: dict[str, str] = field(default_factory=dict)
    _tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: The other fields of the message and of the choice.
    _rest_of_message: dict[str, Any] = field(default_factory=dict)
    _rest: dict[str, Any] = field(default_factory=dict)
    _places: CallPlaces = field(default_factory=CallPlaces)
    #: The field of a choice that has the parts of this one; "" until one of them had a part.
    _field: str = ""
    #: Whether a chunk was a message as in OpenAI's API, and whether one had something else instead.
    _is_message: bool = False
    _is_strange: bool = False
    _logprobs: list[Any] = field(default_factory=list)
    _characters: WholeCharacters = field(default_factory=WholeCharacters)

    @property
    def text(self) -> str:
        """The text so far. When the choice is complete, its last part has an end; a part that was cut has none."""
        is_complete = self.finish_reason not in {"", FinishReason.LENGTH, FinishReason.CONTENT_FILTER}
        return "".join(self.parts) + ("" if self.writer is None else self.writer.rest(is_complete=is_complete))

    @property
    def has_begun(self) -> bool:
        return self.chunks > 0

    @property
    def is_missing(self) -> bool:
        """Whether the upstream has sent neither a part of the choice nor its end."""
        return not (self.finish_reason or self.has_begun)

    def add_chunk(self, choice: Mapping[str, Any], *, is_full: bool) -> str | None:
        """Add one chunk of a stream. Return its new text, which may be "", or None if it has no part of the answer.

        If `is_full`, the choice has its length: a further part is left out, and ends it. Raises AnswerInvalid.
        """
        fields = ("text", "delta", "message") if self.kind == "completion" else ("delta", "message", "text")
        pieces = self._read(choice, fields)
        if pieces.has_part and is_full:
            self.runs_on = not read_finish_reason(choice.get("finish_reason"))
            self.end(FinishReason.LENGTH)
            return None
        self.runs_on = self.runs_on and not choice.get("finish_reason")
        return self._add(choice, pieces)

    def add_text(self, field: str, text: str, *, is_full: bool) -> str | None:
        """Add a chunk that has only this text: content, or reasoning in the field of this name; see `add_chunk`."""
        if is_full:
            self.runs_on = True
            self.end(FinishReason.LENGTH)
            return None
        is_content = field == "content"
        kept = is_content and not self._characters.held if self.writer is None else self.writer.continues(field)
        if kept and is_plain(text):
            self.size += len(text) * (4 if is_content else 8)
            self.chunks += 1
            self.parts.append(text)
            return text
        pieces = Pieces(content=text) if is_content else Pieces(reasoning=text, reasoning_field=field)
        new = self._keep(pieces, ()) if self.writer is None else self._write(self.writer, pieces, ())
        self._take(pieces, new)
        return new

    def add_whole(self, choice: Mapping[str, Any]) -> str:
        """Add a choice that is not streamed and return its text. Raises AnswerInvalid."""
        fields = ("text", "message", "delta") if self.kind == "completion" else ("message", "delta", "text")
        given = {"finish_reason": "stop"} | {name: value for name, value in choice.items() if value is not None}
        return self._add(given, self._read(given, fields), is_whole=True) or ""

    def end(self, reason: str) -> None:
        """Note that nothing more comes, and why if the upstream has not said it. Raises AnswerInvalid."""
        self._note_reason(self.finish_reason or reason)

    def extra(self) -> dict[str, Any]:
        """Return what the choice has beside its text, as the job's result stores it; empty if it has nothing else."""
        others: dict[str, Any] = dict(self._others)
        if self._tool_calls:
            others["tool_calls"] = [self._tool_calls[index] for index in sorted(self._tool_calls)]
        if self._logprobs:
            others["logprobs"] = _joined_logprobs(self._logprobs)
        return {**self._rest_of_message, **others} | ({"choice": self._rest} if self._rest else {})

    def _add(self, choice: Mapping[str, Any], pieces: Pieces, *, is_whole: bool = False) -> str | None:
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            self._logprobs.append(logprobs)
        if self.keeps_rest:
            self.size += keep_rest(self._rest, choice, _READ_OF_CHOICES)
            self.size += keep_rest(self._rest_of_message, pieces.others, _READ_OF_MESSAGES)
        calls = [self._places.place(piece, is_whole=is_whole) for piece in pieces.calls]
        text = self._keep(pieces, calls) if self.writer is None else self._write(self.writer, pieces, calls)
        # Logprobs and tool calls are counted by a bound on their length, because it is their sum that must be bounded.
        self.size += sum(len(str(item)) for item in (pieces.calls, pieces.others, logprobs) if item)
        self._take(pieces, text)
        self._note_reason(read_finish_reason(choice.get("finish_reason")))
        return text if pieces.has_part else None

    def _take(self, pieces: Pieces, text: str) -> None:
        """Take over the new text, and count the chunk if it has a part."""
        # The writer may hold content back: then it is not in the text yet.
        self.size += 4 * (max(len(text), len(pieces.content)) + len(pieces.reasoning) + len(pieces.refusal))
        if pieces.has_part:
            self.chunks += 1
        if text:
            self.parts.append(text)

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
        """Note why the choice ended, "" for nothing. Raises AnswerInvalid if nothing of it was understood."""
        if not reason:
            return
        if not self.has_begun and (self._is_strange or not self._is_message):
            raise AnswerInvalid("the upstream ended the answer without a part in OpenAI's format")
        if reason in {"stop", "tool_calls"}:
            reason = "tool_calls" if self._places.number else "stop"
        self.finish_reason = reason

    def _keep(self, pieces: Pieces, calls: Sequence[tuple[int, CallPiece]]) -> str:
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
        text = writer.reasoning(pieces.reasoning, pieces.reasoning_field) if pieces.reasoning else ""
        text += writer.content(pieces.content) if pieces.content else ""
        if writer.keeps_sources:
            self._others |= {"refusal": self._others.get("refusal", "") + pieces.refusal} if pieces.refusal else {}
        elif pieces.refusal:
            text += writer.content(pieces.refusal)
        for number, piece in calls:
            try:
                text += writer.call(number, piece.name, piece.arguments, piece.id)
            except OrderInvalid as error:
                raise AnswerInvalid(str(error)) from None
        return text


def keep_rest(
    kept: dict[str, Any], fields: Mapping[str, Any], read: frozenset[str], *, joins_texts: bool = True
) -> int:
    """Keep what the upstream has sent beside the answer, such as `token_ids`: lists are joined, others replaced.

    Fields in `read` are left out. Return a bound on the size of the others.
    """
    size = 0
    for name, value in fields.items():
        if value is None or name in read:
            continue
        size += len(str(value))
        before = kept.get(name)
        joins = isinstance(value, list | str if joins_texts else list) and type(before) is type(value)
        kept[name] = before + value if joins else value
    return size


def with_whole_characters(value: dict[str, Any]) -> dict[str, Any]:
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
