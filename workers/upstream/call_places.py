"""Finds the call of a tool to which each piece belongs, however a server numbers its calls; pure."""

import re
from dataclasses import dataclass, field

from workers.upstream.pieces import MAX_CALLS, AnswerInvalid, CallPiece

#: The parts of a JSON text that decide where a value ends: a character after a backslash, a quote, and brackets.
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)


class ObjectScanner:
    """Says whether a JSON object that arrives in pieces is complete. Each character is read once."""

    def __init__(self) -> None:
        self._depth, self._in_text, self._has_begun, self._backslash = 0, False, False, ""

    @property
    def is_complete(self) -> bool:
        return self._has_begun and self._depth == 0

    def feed(self, piece: str) -> None:
        text = self._backslash + piece
        found = _STRUCTURE.findall(text)
        escapes = len(text) - len(text.rstrip("\\"))
        self._backslash = "\\" if escapes % 2 else ""
        for mark in found:
            if mark == '"':
                self._in_text = not self._in_text
            elif not self._in_text and len(mark) == 1:
                self._has_begun = True
                self._depth += 1 if mark in "{[" else -1


@dataclass
class _Call:
    index: int | None
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    scanner: ObjectScanner = field(default_factory=ObjectScanner)

    def repeats(self, piece: CallPiece) -> bool:
        """Return whether a piece sends again what is complete, as some servers do in the last chunk."""
        return bool(piece.id and piece.id == self.id) and piece.arguments == "".join(self.arguments)


class CallPlaces:
    """Numbers the calls of one answer in the order in which they begin.

    A server numbers its calls by `index`, by `id`, by both or by neither. Some send the index 0 with each call, some
    repeat the name in each chunk, and some send whole calls without any number.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        #: The upstream's index, and its id → the number of the last call that has it.
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}

    @property
    def number(self) -> int:
        return len(self._calls)

    def place(self, piece: CallPiece, *, is_whole: bool = False) -> tuple[int, CallPiece]:
        """Return the number of the piece's call, and what the piece adds to it: no name, or text, that it repeats.

        If `is_whole` is true, the piece is a whole call. Raises AnswerInvalid.
        """
        number = None if is_whole else self._find(piece)
        if number is None:
            number = self._begin(piece)
        call = self._calls[number]
        if piece.id and not call.id:
            call.id = piece.id
            self._by_id[piece.id] = number
        name = "" if call.arguments else _new_part(call.name, piece.name)
        arguments = "" if call.scanner.is_complete and call.repeats(piece) else piece.arguments
        call.name += name
        if arguments:
            call.arguments.append(arguments)
            call.scanner.feed(arguments)
        return number, CallPiece(number, call.id, name, arguments)

    def _begin(self, piece: CallPiece) -> int:
        number = len(self._calls)
        if number >= MAX_CALLS:
            raise AnswerInvalid(f"the upstream sent more than {MAX_CALLS} calls of tools")
        self._calls.append(_Call(piece.index, piece.id))
        if piece.index is not None:
            self._by_index[piece.index] = number
        if piece.id:
            self._by_id[piece.id] = number
        return number

    def _find(self, piece: CallPiece) -> int | None:
        number = self._named(piece)
        if number is None:
            return None
        call = self._calls[number]
        if piece.id and call.id and piece.id != call.id:
            # A server that invents an id for each chunk sends no name with what continues a call.
            continues = not piece.name and piece.arguments and not call.scanner.is_complete
            return number if continues else None
        if piece.name and call.name and piece.name != call.name:
            may_be_more = not call.arguments and (piece.index is not None or piece.name.startswith(call.name))
            is_late = piece.index is not None and not call.scanner.is_complete
            return number if may_be_more or is_late else None
        begins = piece.name and piece.arguments.strip() and call.scanner.is_complete and not call.repeats(piece)
        return None if begins else number

    def _named(self, piece: CallPiece) -> int | None:
        """Return the number of the call that the piece names by its index or its id; without both, the last one."""
        by_id = self._by_id.get(piece.id) if piece.id else None
        if piece.index is not None:
            if by_id is not None and self._calls[by_id].index == piece.index:
                return by_id
            return self._by_index.get(piece.index)
        return (len(self._calls) - 1 if self._calls else None) if by_id is None else by_id


def _new_part(known: str, given: str) -> str:
    """Return what a piece adds to a name that may arrive in pieces, or whole in each chunk."""
    return given.removeprefix(known) if given.startswith(known) else given
