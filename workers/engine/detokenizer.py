"""Convert the bytes of tokens to text of whole characters, cut at the first stop string, which may span tokens."""

import codecs


class Detokenizer:
    """The text of one sequence's answer while it is generated.

    Stop strings count only in the text of the tokens after the first `min_tokens`, and where `expect` says so.

    Invariants: `text` is the concatenation of everything that `feed` and `finish` have returned. Between two marks, it
    contains no stop string where they count. After `finish`, it is what decoding all bytes at once would give, without
    invalid UTF-8, up to the first stop string.
    """

    def __init__(self, stops: tuple[str, ...] = (), *, strip_space: bool = False, min_tokens: int = 0) -> None:
        self._stops = stops
        #: How many of the next tokens are read without looking for stop strings.
        self._unsearched = min_tokens
        self._searched = True
        #: How a text begins in which stop strings do not count, while the text since the last mark may begin so, and
        #: this text; "" if it does not.
        self._header, self._lead = "", ""
        self._longest_stop = max((len(stop) for stop in stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        #: Whether the decoder has read only the first bytes of a character.
        self._incomplete = False
        self._strip_space = strip_space
        #: Text that is held back because it might be the beginning of a stop string.
        self._held = ""
        self._returned: list[str] = []
        #: The stop string that has ended the answer; "" while none has.
        self.stopped_by = ""

    @property
    def stopped(self) -> bool:
        return bool(self.stopped_by)

    @property
    def text(self) -> str:
        return "".join(self._returned)

    @property
    def whole_text(self) -> str:
        return self.text + ("" if self.stopped else self._held)

    @property
    def is_searched(self) -> bool:
        """Whether stop strings count in the text at this point, as far as that is known."""
        return self._searched and not self._header

    def feed(self, piece: bytes) -> str:
        """Add one token's bytes. Return the new text that cannot belong to a stop string; it is often empty."""
        searched, self._unsearched = self._unsearched <= 0, self._unsearched - 1
        if self._strip_space and piece:
            # SentencePiece tokenizers put a space before the first word of a text.
            piece, self._strip_space = piece.removeprefix(b" "), False
        if not self._incomplete and piece.isascii():
            return self._add(piece.decode("ascii"), searched=searched)
        new = self._decoder.decode(piece)
        self._incomplete = bool(self._decoder.getstate()[0])
        return self._add(new, searched=searched)

    def expect(self, *, searched: bool, header: str = "") -> None:
        """Say whether stop strings count in the text up to the next mark.

        They do not if the text begins with `header` after white space; "" if no text does.
        """
        self._searched, self._header, self._lead = searched, header, ""

    def add_mark(self, mark: str) -> str:
        """Add a mark between two texts, which is a token and no part of `text`.

        Return the text that was held back, and the mark: no stop string contains it. An incomplete character is
        discarded.
        """
        self._unsearched -= 1
        self._decoder.reset()
        self._incomplete = False
        return "" if self.stopped else self._release() + mark

    def finish(self) -> str:
        """End the answer. Return the text that was held back; an incomplete character is discarded."""
        if self.stopped:
            return ""
        if self._header:
            # A text that has not become a header is an ordinary one.
            cut, self.stopped_by = self._find_first_stop(self._held)
            self._held = self._held[:cut] if self.stopped else self._held
        return self._release()

    def _release(self) -> str:
        rest, self._held = self._held, ""
        if rest:
            self._returned.append(rest)
        return rest

    def _add(self, new: str, *, searched: bool) -> str:
        if not new or self.stopped:
            return ""
        if self._stops and self._header and self._may_be_header(new):
            if searched:
                self._held, new = self._held + new, ""
        elif self._stops and searched and self._searched:
            new = self._held + new
            cut, self.stopped_by = self._find_first_stop(new)
            safe = cut if self.stopped else len(new) - self._partial_stop_length(new)
            self._held = "" if self.stopped else new[safe:]
            new = new[:safe]
        else:
            new, self._held = self._held + new, ""
        if new:
            self._returned.append(new)
        return new

    def _may_be_header(self, new: str) -> bool:
        """Add text at the beginning of a text that may be a header. Return whether it still may be one."""
        self._lead += new
        lead = self._lead.lstrip()
        if not lead.startswith(self._header):
            if self._header.startswith(lead):
                return True
        else:
            self._searched = False
        self._header, self._lead = "", ""
        return False

    def _find_first_stop(self, text: str) -> tuple[int, str]:
        """Return where the first stop string begins, and the stop string; -1 and "" if the text contains none."""
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found, key=lambda one: one[0], default=(-1, ""))

    def _partial_stop_length(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is the beginning of a stop string, or 0."""
        for length in range(min(self._longest_stop - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
