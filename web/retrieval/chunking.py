"""Divides a text into chunks of a bounded number of tokens. Each begins with the end of the chunk before it.

A text is first divided into small pieces: sentences, lines, and parts of them. A chunk is a run of pieces. It ends at
the best cut of its second half: before a heading, after a paragraph, a sentence, a line or a word. Only a word that is
longer than a piece is cut in its middle, and only a row or a line of code that is longer than a chunk. Each character
is counted a bounded number of times, so the time is linear in the length of the text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from unicodedata import combining

from web.retrieval.cuts import Cut, Outline, Stretch

#: Estimates the tokens of a text, a number that is not negative.
Count = Callable[[str], float]

#: The fewest tokens that a chunk may be allowed to have.
MIN_TOKENS = 16
#: The tokens that an embedding model adds to each text, and how many times larger than the estimate a text may be: a
#: text in Korean or Thai has a third more tokens of an English vocabulary, and the titles of its sections come on top.
_ADDED, _MARGIN = 2, 1.5
#: A piece has at most this many tokens if the limit and the overlap would demand smaller ones.
_SMALLEST_PIECE = 4
#: Parts of long sentences have at first this many characters for each token that a piece may have.
_CHARS_PER_TOKEN = 3
#: Sentences and lines, and paragraphs, of fewer characters are joined with what follows: each count of a text takes
#: some microseconds.
_SHORTEST, _SHORTEST_PARAGRAPH = 16, 4
_WORD = re.compile(r"\S+\s*|\s+")
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")
#: How far a cut is moved so that it does not separate a character from its accents.
_MAX_MOVE = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text: `text[start:end]`, without blank lines at its ends."""

    start: int
    end: int
    text: str
    #: The estimate.
    tokens: int
    #: The titles of the sections that contain the chunk, joined with ` > `. A heading in the chunk is not one of them.
    section: str


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    end: int
    #: How well the piece's end suits as the end of a chunk.
    cut: Cut
    tokens: float


def divide(text: str, count: Count, chunk_tokens: int, overlap_tokens: int) -> Iterator[Chunk]:
    """Return the chunks of a text, in order and as they are asked for: they contain all but white space.

    Each chunk has at most `chunk_tokens`, and begins with up to `overlap_tokens` from the end of the one before, and
    with at least half as many, unless that would cut a line of code or a row of a table. An overlap of more than half a
    chunk is read as half a chunk. A single character is a chunk, whatever its tokens. Raises ValueError if
    `chunk_tokens` is less than MIN_TOKENS.
    """
    if chunk_tokens < MIN_TOKENS:
        raise ValueError(f"chunk_tokens={chunk_tokens} is less than {MIN_TOKENS}")
    return _chunks(text.rstrip(), count, chunk_tokens, min(max(0, overlap_tokens), chunk_tokens // 2))


def fitting_tokens(chunk_tokens: int, n_ctx: int | None) -> int:
    """Return how many tokens a chunk may have by the estimate, so that it fits the context of the embedding model.

    `n_ctx` is the context in tokens; None if it is unknown.
    """
    return chunk_tokens if n_ctx is None else max(MIN_TOKENS, min(chunk_tokens, int((n_ctx - _ADDED) / _MARGIN)))


def _chunks(text: str, count: Count, chunk_tokens: int, overlap: int) -> Iterator[Chunk]:
    outline = Outline(text)
    largest = max(_SMALLEST_PIECE, min((chunk_tokens - overlap) // 2, overlap // 2 or chunk_tokens))
    pieces = _Divider(text, count, largest).pieces(outline.stretches())
    for start, end, tokens in _Packer(text, count, pieces, chunk_tokens, overlap).spans():
        yield Chunk(start, end, text[start:end], tokens, outline.section_at(start))


class _Divider:
    """Divides a text into pieces of at most `largest` tokens."""

    def __init__(self, text: str, count: Count, largest: int) -> None:
        self._text, self._count, self._largest = text, count, largest
        self._width = _CHARS_PER_TOKEN * largest

    def pieces(self, stretches: Iterator[Stretch]) -> Iterator[_Piece]:
        start, has_rows = 0, False
        for end, cut, has_more_rows in stretches:
            has_rows = has_rows or has_more_rows
            shortest = min(_SHORTEST if cut < Cut.PARAGRAPH else _SHORTEST_PARAGRAPH, self._largest)
            if end - start >= shortest or end == len(self._text):
                yield from self._stretch(start, end, cut, has_rows=has_rows)
                start, has_rows = end, False

    def _stretch(self, start: int, end: int, cut: Cut, *, has_rows: bool) -> Iterator[_Piece]:
        # A stretch that is surely longer than a piece need not be counted.
        if end - start <= 2 * self._width:
            tokens = self._count(self._text[start:end])
            if tokens <= self._largest:
                yield _Piece(start, end, cut, tokens)
                return
        for begin, stop in self._groups(start, end):
            for piece in self._halved(begin, stop):
                own = cut if piece.end == end else self._cut_inside(piece.end, has_rows=has_rows)
                yield replace(piece, cut=own)

    def _cut_inside(self, end: int, *, has_rows: bool) -> Cut:
        """Return how well the end of a part of a stretch suits."""
        last = self._text[end - 1]
        if has_rows:
            return Cut.SENTENCE if last in "\r\n" else Cut.INSIDE
        return Cut.WORD if last.isspace() else Cut.ANYWHERE

    def _groups(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield runs of words that have about the width, and parts of words that are longer."""
        begin = start
        for word in _WORD.finditer(self._text, start, end):
            first, stop = word.span()
            if stop - first > 4 * self._width:
                if begin < first:
                    yield begin, first
                while stop - first > self._width:
                    cut = self._whole(first + self._width, first)
                    yield first, cut
                    first = cut
                begin = first
            if stop - begin >= self._width:
                yield begin, stop
                begin = stop
        if begin < end:
            yield begin, end

    def _halved(self, start: int, end: int) -> Iterator[_Piece]:
        """Yield the pieces of a part of a stretch."""
        waiting = [(start, end)]
        while waiting:
            begin, stop = waiting.pop()
            tokens = self._count(self._text[begin:stop])
            if tokens <= self._largest or stop - begin == 1:
                yield _Piece(begin, stop, Cut.ANYWHERE, tokens)
            else:
                middle = self._middle(begin, stop)
                waiting += ((middle, stop), (begin, middle))

    def _middle(self, start: int, end: int) -> int:
        """Return a position near the middle: the end of a word, or else one between two characters."""
        words = [word.end() for word in _WORD.finditer(self._text, start, end)][:-1]
        middle = (start + end) // 2
        return min(words, key=lambda at: abs(at - middle)) if words else self._whole(middle, start)

    def _whole(self, at: int, start: int) -> int:
        """Return the last position up to `at` that separates no character from its accents, if one is near."""
        for moved in range(at, max(start, at - _MAX_MOVE), -1):
            before, after = self._text[moved - 1], self._text[moved]
            joined = after in _JOINERS or before == "\u200d" or combining(after) or before + after == "\r\n"
            if not joined:
                return moved
        return at


class _Packer:
    """Joins pieces to chunks. Pieces are named by their index, and places between them by the index of the next."""

    def __init__(self, text: str, count: Count, pieces: Iterator[_Piece], limit: int, overlap: int) -> None:
        self._text, self._count, self._source = text, count, pieces
        self._limit, self._overlap = limit, overlap
        self._pieces: list[_Piece] = []
        #: The tokens before each place.
        self._before: list[float] = [0]

    def _read(self, tokens: float) -> bool:
        """Read pieces until they have more tokens. Return whether all are read."""
        while self._before[-1] <= tokens:
            piece = next(self._source, None)
            if piece is None:
                return True
            self._pieces.append(piece)
            self._before.append(self._before[-1] + piece.tokens)
        return False

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield the start, the end and the tokens of each chunk."""
        first = covered = 0
        while not self._read(self._before[first] + self._limit) or covered < len(self._pieces):
            first, last, tokens = self._fitting(first, covered, self._last(first, covered))
            if self._text[self._pieces[covered].start : self._pieces[last - 1].end].strip():
                yield *self._trimmed(first, last), max(1, ceil(tokens))
            covered, first = last, self._overlap_start(first, last)

    def _last(self, first: int, covered: int) -> int:
        """Return the place at which a chunk ends: the best cut of its second half."""
        begin = self._before[first]
        farthest = max(bisect_right(self._before, begin + self._limit) - 1, covered + 1)
        if farthest >= len(self._pieces):
            return len(self._pieces)
        nearest = max(bisect_left(self._before, begin + self._limit / 2), covered + 1)
        best = self._best(min(nearest, farthest), farthest)
        # A row that is cut is worth less than a chunk that is shorter.
        return best if self._pieces[best - 1].cut > Cut.INSIDE else self._best(covered + 1, farthest)

    def _best(self, nearest: int, farthest: int) -> int:
        return max(range(nearest, farthest + 1), key=lambda at: (self._pieces[at - 1].cut, at))

    def _fitting(self, first: int, covered: int, last: int) -> tuple[int, int, float]:
        """Return the places and the tokens of a chunk, which is made shorter if it has more tokens than its pieces."""
        while True:
            start, end = self._trimmed(first, last)
            tokens = self._count(self._text[start:end])
            if tokens <= self._limit or (last == covered + 1 and first == covered):
                return first, last, tokens
            if last > covered + 1:
                last -= max(1, (last - covered) // 2)
            else:
                first = covered

    def _overlap_start(self, first: int, last: int) -> int:
        """Return the place in a chunk at which the next one begins: the best cut of the first half of the overlap."""
        if not self._overlap:
            return last
        end = self._before[last]
        farthest = max(first, bisect_left(self._before, end - self._overlap))
        nearest = bisect_right(self._before, end - self._overlap / 2) - 1
        best = max(range(farthest, max(nearest, farthest) + 1), key=lambda at: (self._cut_before(at), -at))
        return best if self._cut_before(best) > Cut.INSIDE else last

    def _cut_before(self, place: int) -> Cut:
        return self._pieces[place - 1].cut if place else Cut.SECTION

    def _trimmed(self, first: int, last: int) -> tuple[int, int]:
        """Return the start and the end of some pieces without blank lines at the start and white space at the end."""
        start, end = self._pieces[first].start, self._pieces[last - 1].end
        text = self._text[start:end]
        stripped = text.lstrip()
        if not stripped:
            return start, end
        blank = text[: len(text) - len(stripped)]
        # The indentation of the first line stays.
        line = max(blank.rfind("\n"), blank.rfind("\r")) + 1
        return start + line, end - len(text) + len(text.rstrip())
