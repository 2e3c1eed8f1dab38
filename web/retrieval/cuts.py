"""Finds the positions at which a text may be cut, how well each suits, and its headings."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from itertools import chain, pairwise
from typing import NamedTuple

_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n]|\Z)")
#: The end of a sentence with the spaces after it, or a full stop of Chinese and Japanese, which no space follows.
_WIDE_STOPS = "。\uff01\uff1f｡"
_CLOSING = "\"'”\u2019»)\\]"
_WIDE_CLOSING = "」』\uff09”"
_SENTENCE_END = re.compile(
    rf"[.!?…][{_CLOSING}]?[^\S\r\n]+(?![^\S\r\n]|[a-z])|[{_WIDE_STOPS}][{_WIDE_CLOSING}]?(?![{_WIDE_STOPS}])"
)
_ENDS_SENTENCE = re.compile(rf"[.!?…:;{_WIDE_STOPS}][{_CLOSING}{_WIDE_CLOSING}]?\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\Z)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*\Z")
_ITEM = re.compile(r"[ \t]{0,12}(?:[-*+•]|\d{1,9}[.)])[ \t]")
#: The most characters of a heading, and of the name of a section, which consists of its lowest headings.
_TITLE_CHARS, _SECTION_CHARS = 80, 160
#: The number of levels of headings.
_LEVELS = 6


class Cut(IntEnum):
    """How well a position suits: a larger value is a better place to cut."""

    #: Between a heading, or the beginning of a block of code, and what follows it.
    APART = -2
    #: In the middle of a line of code or of a row of a table.
    INSIDE = -1
    ANYWHERE = 0
    WORD = 1
    LINE = 2
    SENTENCE = 3
    PARAGRAPH = 4
    #: Before a heading.
    SECTION = 5


class Stretch(NamedTuple):
    """The text between two cuts that suit."""

    end: int
    #: How well the end suits.
    cut: Cut
    #: Whether it contains lines of code or rows of a table, which are not cut if it can be helped.
    has_rows: bool


class _Kind(Enum):
    BLANK = auto()
    HEADING = auto()
    FENCE = auto()  # the line that begins a block of code
    CODE = auto()
    ROW = auto()  # of a table
    ITEM = auto()  # the first line of an item of a list
    PROSE = auto()
    END = auto()  # of the text


_END = (0, 0, _Kind.END)


@dataclass(frozen=True, slots=True)
class _Heading:
    start: int
    #: The titles of the sections that contain this one, and its own title.
    above: tuple[str, ...]
    title: str


class Outline:
    """The positions at which a text may be cut, and its headings.

    Every text is read as Markdown: a plain text has no worse cuts for it. No cut separates a heading from the text
    below it, and inside blocks of code and tables all cuts are ends of lines.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._headings: list[_Heading] = []

    def stretches(self) -> Iterator[Stretch]:
        """Yield the stretches between cuts, in order. The time is linear in the length of the text."""
        below_heading = has_rows = False
        for (start, end, kind), (_, _, following) in pairwise(chain(_lines(self._text), [_END])):
            if kind is _Kind.HEADING:
                self._add_heading(start, end)
            if kind in (_Kind.PROSE, _Kind.ITEM):
                for found in _SENTENCE_END.finditer(self._text, start, end):
                    if found.end() < end:
                        yield Stretch(found.end(), Cut.SENTENCE, has_rows)
                        has_rows = False
            has_rows = has_rows or kind in (_Kind.CODE, _Kind.ROW)
            below_heading = kind is _Kind.HEADING or (below_heading and kind is _Kind.BLANK)
            # Of several blank lines, the cut is after the last.
            if following is not _Kind.BLANK:
                ending = self._text[max(start, end - 8) : end]
                cut = Cut.APART if below_heading else _cut_after(kind, following, ending)
                yield Stretch(end, cut, has_rows)
                has_rows = False

    def section_at(self, start: int) -> str:
        """Return the titles of the sections that contain a position, without a heading that begins there.

        The stretches up to the position must have been read.
        """
        at = bisect_left(self._headings, start, key=lambda heading: heading.start)
        if at < len(self._headings) and self._headings[at].start == start:
            titles = self._headings[at].above
        else:
            titles = (*self._headings[at - 1].above, self._headings[at - 1].title) if at else ()
        shown = list(filter(None, titles))
        while len(name := " > ".join(shown)) > _SECTION_CHARS:
            del shown[0]
        return name

    def _add_heading(self, start: int, end: int) -> None:
        line = self._text[start:end].rstrip()
        found = _HEADING.match(line)
        if found is not None:
            self._add(start, len(found[1]), line[found.end() :].strip().rstrip("#"))
        elif _UNDERLINE.match(line) is None:
            self._add(start, 1, line)
        elif "-" in line and self._headings:
            # The title above this line was taken for one of the first level.
            title = self._headings.pop()
            self._add(title.start, 2, title.title)

    def _add(self, start: int, level: int, title: str) -> None:
        above = (*self._headings[-1].above, self._headings[-1].title) if self._headings else ()
        # A title's place is its level. A level that the text leaves out has an empty title, which is not shown.
        padded = (*above, *("",) * _LEVELS)[: level - 1]
        self._headings.append(_Heading(start, padded, title.strip()[:_TITLE_CHARS]))


def _cut_after(kind: _Kind, following: _Kind, ending: str) -> Cut:
    """Return how well the place between two lines suits; `ending` is the end of the first one."""
    if following in (_Kind.HEADING, _Kind.END):
        return Cut.SECTION
    if kind is _Kind.BLANK:
        return Cut.PARAGRAPH
    if kind is _Kind.FENCE:
        return Cut.APART
    if kind in (_Kind.CODE, _Kind.ROW) or following in (_Kind.ITEM, _Kind.ROW, _Kind.FENCE):
        return Cut.SENTENCE
    return Cut.SENTENCE if _ENDS_SENTENCE.search(ending.rstrip()) else Cut.LINE


def _lines(text: str) -> Iterator[tuple[int, int, _Kind]]:
    """Yield the start, the end and the kind of each line."""
    spans = (found.span() for found in _LINE.finditer(text) if found.end() > found.start())
    fence = ""
    titled = False
    for (start, end), following in pairwise(chain(spans, [(0, 0)])):
        line = text[start:end].rstrip()
        found = _FENCE.match(line)
        kind = _Kind.CODE if fence else _Kind.FENCE if found else _kind_of(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and found.end() == len(line):
            fence = ""
        elif titled:
            kind = _Kind.HEADING
        titled = not titled and kind is _Kind.PROSE and _UNDERLINE.match(text[slice(*following)].rstrip()) is not None
        yield start, end, _Kind.HEADING if titled else kind


def _kind_of(line: str) -> _Kind:
    """Return the kind of a line that is neither in a block of code nor its beginning."""
    if not line:
        return _Kind.BLANK
    if _HEADING.match(line):
        return _Kind.HEADING
    if line.lstrip().startswith("|"):
        return _Kind.ROW
    return _Kind.ITEM if _ITEM.match(line) else _Kind.PROSE
