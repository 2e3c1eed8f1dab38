"""Reads the chunks of one stream: whole, or only the text of a chunk that differs from an earlier one in nothing else.

A server sends a chunk for each token, and almost all chunks of a stream consist of the same bytes around their text. To
find the text between these bytes costs a tenth of parsing the chunk.
"""

import json
import re
from typing import Any, NamedTuple

from workers.upstream.answer import Answer
from workers.upstream.faults import fault_in_answer
from workers.upstream.pieces import REASONING_FIELDS, AnswerInvalid, read_index
from workers.upstream.vectors import Vectors

#: Bytes that stand for themselves inside a JSON string.
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
#: The value of a field with a text: the bytes between its quotes are the group.
_TEXT_VALUE = rb'"%b"[ \t\r\n]*:[ \t\r\n]*"((?:[^"\\]|\\.)+)"'
#: Takes the place of the text when the bytes around it are checked. It is valid JSON nowhere but inside of a string,
#: and there it is no part of an escape.
_MARK = "~text~"
#: The fields of a chunk that say nothing about the answer, and the fields of a choice in which a part of it arrives.
_SILENT = frozenset({"created", "id", "model", "object", "system_fingerprint"})
_CONTAINERS = ("delta", "message", "text")
#: The longest chunk whose form is remembered, in bytes; and how many forms in a row may fail to match the next chunk
#: before no more are looked for.
_MAX_FRAME_BYTES, _MOST_MISSES = 4096, 4
#: Some servers send NaN or Infinity, which are not JSON. A client must not receive them.
_DECODER = json.JSONDecoder(parse_constant=lambda _name: None)

#: Collects what the upstream answers, as it arrives.
Reply = Answer | Vectors


def parsed(data: bytes) -> Any:
    """Return the JSON value of a chunk or a response. Raises AnswerInvalid."""
    try:
        return _DECODER.decode(data.decode(json.detect_encoding(data), "surrogatepass"))
    except (ValueError, RecursionError):
        raise AnswerInvalid("the upstream sent something that is not JSON") from None


class ChunkFrame(NamedTuple):
    """The bytes around the text of a chunk that says nothing else, and where the text belongs."""

    head: bytes
    tail: bytes
    #: The index of the choice.
    choice: int
    #: `content`, or the name of the field with reasoning.
    field: str

    def text_in(self, chunk: bytes) -> str:
        """Return the text of a chunk with the same bytes around it, or "" for any other chunk.

        `json.loads` finds the same text: what is between the frame's bytes is the inside of one JSON string.
        """
        if not (chunk.startswith(self.head) and chunk.endswith(self.tail)):
            return ""
        inside = chunk[len(self.head) : len(chunk) - len(self.tail)]
        try:
            if _PLAIN.fullmatch(inside):
                return inside.decode()
            text: str = json.loads(f'"{inside.decode()}"')
        except ValueError:
            # Also of bytes that are not UTF-8.
            return ""
        return text


def find_frame(data: bytes, chunk: Any) -> ChunkFrame | None:
    """Return the frame of a chunk and its parsed value; None if it may say more than a text of one choice."""
    if len(data) > _MAX_FRAME_BYTES or any(chunk[name] is not None for name in chunk.keys() - _SILENT - {"choices"}):
        return None
    choices = chunk["choices"]
    place = _place_of_text(choices[0]) if len(choices) == 1 else None
    found = None if place is None else re.search(_TEXT_VALUE % (place[1] or place[0]).encode(), data)
    if place is None or found is None:
        return None
    head, tail = data[: found.start(1)], data[found.end(1) :]
    try:
        marked = parsed(head + _MARK.encode() + tail)
    except AnswerInvalid:
        return None
    # The frame is right if the marked chunk is the same but for its text.
    holder, name = _holder(marked, *place)
    was_marked, (given, _) = holder[name] == _MARK, _holder(chunk, *place)
    holder[name] = given[name]
    if not was_marked or marked != chunk:
        return None
    return ChunkFrame(head, tail, read_index(choices[0].get("index"), "a choice") or 0, place[1] or "content")


def _holder(chunk: Any, container: str, name: str) -> tuple[dict[str, Any], str]:
    """Return the object that has the text of a chunk's only choice, and the name of the text in it."""
    choice = chunk["choices"][0]
    return (choice[container], name) if name else (choice, container)


def _place_of_text(choice: Any) -> tuple[str, str] | None:
    """Return the container of a choice's text and its field in there, "" if the container is the text itself.

    Return None if the choice has more than this text, or none.
    """
    if not isinstance(choice, dict):
        return None
    given = {name for name, value in choice.items() if value is not None and name != "index"}
    if choice.get("finish_reason") == "":
        given.discard("finish_reason")
    if len(given) != 1 or not given <= {*_CONTAINERS}:
        return None
    [container] = given
    holder = choice[container]
    if isinstance(holder, str):
        return (container, "") if holder else None
    if not isinstance(holder, dict):
        return None
    said = {name for name, value in holder.items() if value not in (None, "", []) and name != "role"}
    if len(said) != 1 or not said <= {"content", *REASONING_FIELDS}:
        return None
    [name] = said
    return (container, name) if isinstance(holder[name], str) else None


class ChunkReader:
    """Adds the chunks of one stream to the answer. `key` is left out of errors that the upstream sends."""

    def __init__(self, answer: Reply, key: str) -> None:
        self._answer, self._key = answer, key
        self._frame: ChunkFrame | None = None
        #: The frame of a whole event with such a chunk, as most servers write it.
        self._event: ChunkFrame | None = None
        self._misses = 0

    def add(self, data: bytes) -> str | None:
        """Add a chunk. Return its new text as `Answer.add_chunk` does. Raises AnswerInvalid and UpstreamFault."""
        if self._frame is not None and (text := self._frame.text_in(data)):
            return self.add_text(text)
        chunk = parsed(data)
        self.raise_error(chunk)
        new = self._answer.add_chunk(chunk)
        if new is not None and self._misses < _MOST_MISSES and (found := find_frame(data, chunk)):
            self._frame = found
            self._event = found._replace(head=b"data: " + found.head, tail=found.tail + b"\n\n")
            self._misses += 1
        return new

    def text_of_event(self, received: bytes) -> str:
        """Return the text of a chunk in the frame if these bytes are one event with it, otherwise ""."""
        return "" if self._event is None else self._event.text_in(received)

    def add_text(self, text: str) -> str | None:
        """Add a chunk in the frame that has this text. Return the same as `add`."""
        frame = self._frame
        if frame is None:
            raise RuntimeError("the stream has no frame yet")
        self._misses = 0
        return self._answer.add_text(frame.choice, frame.field, text)

    def raise_error(self, value: Any) -> None:
        """Raise an UpstreamFault if a chunk or a response is an error."""
        fault = fault_in_answer(value, key=self._key, has_begun=self._answer.has_begun)
        if fault is not None:
            raise fault
