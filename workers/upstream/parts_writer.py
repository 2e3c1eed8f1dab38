"""Writes an upstream's message in the form of shared/answer_parts.py while it arrives; pure."""

import json
import re
from dataclasses import dataclass, field
from typing import Literal

from shared.answer_parts import ARGUMENTS, CALL, END, REASONING, SOURCE, without_marks

#: Ids of calls that are longer than this are not kept. All that are in use are shorter.
_MAX_ID = 200


#: The characters that an answer's text does not have as they arrive: halves of characters, and our own marks.
_CHANGED = re.compile(f"[\ud800-\udfff{ARGUMENTS}{CALL}{END}{REASONING}{SOURCE}]")


def is_plain(text: str) -> bool:
    """Return whether a piece of a text becomes a part of an answer as it is, unless half of a character precedes it."""
    return text.isascii() or _CHANGED.search(text) is None


class OrderInvalid(Exception):
    """The upstream went back to a call of a tool whose arguments were complete."""


class WholeCharacters:
    """Joins the halves of characters: a server that escapes its JSON may put two surrogates into two chunks.

    `held` is the half whose other half is awaited.
    """

    def __init__(self) -> None:
        self.held = ""

    def add(self, piece: str) -> str:
        """Return the new text. Half of a pair at its end is held back until the other half arrives.

        A half alone becomes U+FFFD.
        """
        text = self.held + piece
        self.held = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        text = text[: len(text) - len(self.held)]
        if text.isascii():
            return text
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass
class _HeldPart:
    """A part that waits until it can be written. `name` is that of a call, `source` what follows the mark SOURCE."""

    kind: Literal["content", "reasoning", "call"]
    name: str = ""
    source: str | None = None
    pieces: list[str] = field(default_factory=list)


class PartsWriter:
    """Each method returns the text to be added to the answer. A part ends where a part of another kind begins.

    If `keeps_sources` is true, the upstream's ids and its names of fields are part of the text.

    Some servers send several calls at once, with pieces of one between pieces of another. In the text, the calls follow
    each other: a part that begins before the open call is complete is held back until the answer ends.
    """

    def __init__(self, *, keeps_sources: bool = False) -> None:
        self.keeps_sources = keeps_sources
        #: The source of the open call, or None.
        self._source: str | None = None
        #: The part that is open: `content`, `reasoning`, or the `name` or `arguments` of a call.
        self._open = "content"
        #: The index of the last call, as the upstream counts them, and those of all calls that were begun.
        self._index, self._indexes = -1, set[int]()
        #: The pieces of the open call's arguments.
        self._arguments: list[str] = []
        #: The parts that wait, in the order in which they began, and the calls among them by their index.
        self._held: list[_HeldPart] = []
        self._held_calls: dict[int, _HeldPart] = {}
        self._characters = WholeCharacters()

    def continues(self, field: str) -> bool:
        """Return whether the text of this field belongs to the part that is open, which no half of a character ends."""
        return self._open == ("content" if field == "content" else "reasoning") and not self._characters.held

    def content(self, piece: str) -> str:
        return self._plain("content", piece, None)

    def reasoning(self, piece: str, field: str = "") -> str:
        return self._plain("reasoning", piece, "" if self.keeps_sources and field == "reasoning" else None)

    def call(self, index: int, name: str, arguments: str, call_id: str = "") -> str:
        """Add a piece of the call with this index. A name that comes after arguments is ignored. Raises OrderInvalid.

        A blank that belongs to a call whose arguments were complete is ignored.
        """
        before = ""
        source = call_id if self.keeps_sources and 0 < len(call_id) <= _MAX_ID else None
        if index != self._index or self._open not in {"name", "arguments"}:
            if index in self._indexes:
                if (name + arguments).strip():
                    raise OrderInvalid(
                        "the upstream went back to an earlier call of a tool, whose arguments were complete"
                    )
                return ""
            if self._must_wait:
                self._hold_call(index, name, arguments, source)
                return ""
            before = self._begin("name") + CALL
            self._source = source
            self._index, self._arguments = index, []
            self._indexes.add(index)
        if self._open == "name":
            before += self._text(name)
            self._source = self._source or source
            if arguments:
                before += _written_source(self._source) + ARGUMENTS
                self._open, self._characters = "arguments", WholeCharacters()
        self._arguments.append(arguments)
        return before + self._text(arguments)

    def rest(self, *, is_complete: bool) -> str:
        """Return what follows if the answer ends here: what was held back, and the end of the last part.

        The last part of an answer that is not complete has no end. Half of a character that stays alone becomes U+FFFD.
        """
        ends = [self._ending, *("" if part.kind == "content" else END for part in self._held)]
        if not is_complete:
            ends[-1] = ""
        return ends[0] + "".join(_written(part) + end for part, end in zip(self._held, ends[1:], strict=True))

    def _plain(self, kind: Literal["content", "reasoning"], piece: str, source: str | None) -> str:
        if not piece or self._open == kind:
            return self._text(piece)
        if not self._must_wait:
            mark = REASONING + _written_source(source) if kind == "reasoning" else ""
            return self._begin(kind) + mark + self._text(piece)
        if not self._held or self._held[-1].kind != kind:
            self._held.append(_HeldPart(kind, source=source))
        self._held[-1].pieces.append(piece)
        return ""

    @property
    def _must_wait(self) -> bool:
        """Whether another part has to wait, because more may come of the open call.

        After the first part that waits, all others wait as well. So the parts keep their order, and the arguments of a
        call are parsed only once.
        """
        if self._held or self._open not in {"name", "arguments"}:
            return bool(self._held)
        try:
            return not isinstance(json.loads("".join(self._arguments)), dict)
        except (ValueError, RecursionError):
            return True

    def _hold_call(self, index: int, name: str, arguments: str, source: str | None) -> None:
        part = self._held_calls.get(index)
        if part is None:
            part = self._held_calls[index] = _HeldPart("call")
            self._held.append(part)
        part.source = part.source or source
        if not part.pieces:
            part.name += name
        if arguments:
            part.pieces.append(arguments)

    @property
    def _ending(self) -> str:
        half = "\ufffd" if self._characters.held else ""
        return half + {"content": "", "name": _written_source(self._source) + ARGUMENTS + END}.get(self._open, END)

    def _begin(self, part: str) -> str:
        """Begin another part, and return the end of the one before."""
        before = self._ending
        self._open, self._characters = part, WholeCharacters()
        return before

    def _text(self, piece: str) -> str:
        """Return a piece of the open part, without the marks of our own answers."""
        return without_marks(self._characters.add(piece))


def _written(part: _HeldPart) -> str:
    text = _whole("".join(part.pieces))
    if part.kind == "call":
        return CALL + _whole(part.name) + _written_source(part.source) + ARGUMENTS + text
    return (REASONING + _written_source(part.source) if part.kind == "reasoning" else "") + text


def _written_source(source: str | None) -> str:
    return "" if source is None else SOURCE + _whole(source)


def _whole(text: str) -> str:
    characters = WholeCharacters()
    return without_marks(characters.add(text) + ("\ufffd" if characters.held else ""))
