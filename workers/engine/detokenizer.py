"""Bytes of tokens in, text out: whole UTF-8, cut at stop strings that may lie across tokens."""

import codecs


class Detokenizer:
    """The answer of one sequence as it grows.

    Always true: what `feed` and `finish` have returned, put together, is `text`; it contains no stop
    string; and it equals decoding all bytes at once, without what is no UTF-8, up to the first stop string.
    """

    def __init__(self, stops: tuple[str, ...] = (), *, strip_space: bool = False) -> None:
        self._stops = stops
        self._longest = max((len(stop) for stop in stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        #: Whether the decoder holds the beginning of a character.
        self._incomplete = False
        self._strip_space = strip_space
        #: Text that might be the beginning of a stop string.
        self._held = ""
        self._given: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        """All text handed out so far."""
        return "".join(self._given)

    def feed(self, piece: bytes) -> str:
        """Take one token's bytes; the new text that is safe to hand out, often empty."""
        if self._strip_space and piece:
            # Tokenizers of the SentencePiece kind put a space before the first word of a text.
            piece, self._strip_space = piece.removeprefix(b" "), False
        if not self._incomplete and piece.isascii():
            return self._take(piece.decode("ascii"))
        new = self._decoder.decode(piece)
        self._incomplete = bool(self._decoder.getstate()[0])
        return self._take(new)

    def finish(self) -> str:
        """The end of generation: what was held back, without an incomplete character."""
        if self.stopped:
            return ""
        rest = self._held
        self._held = ""
        if rest:
            self._given.append(rest)
        return rest

    def _take(self, new: str) -> str:
        if not new or self.stopped:
            return ""
        if self._stops:
            new = self._held + new
            cut = self._first_stop(new)
            self.stopped = cut >= 0
            safe = cut if self.stopped else len(new) - self._possible_beginning(new)
            self._held = "" if self.stopped else new[safe:]
            new = new[:safe]
        if new:
            self._given.append(new)
        return new

    def _first_stop(self, text: str) -> int:
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        return min(found, default=-1)

    def _possible_beginning(self, text: str) -> int:
        """Characters at the end of `text` with which some stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
