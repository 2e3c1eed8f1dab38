"""Reads the text of an HTML page as Markdown: headings, paragraphs, items of lists, rows of tables, blocks of code."""

import re
from html.parser import HTMLParser

from web.retrieval.formats.decoding import find_encoding
from web.retrieval.formats.documents import UnreadableDocument

#: Elements whose content is not shown.
_HIDDEN = frozenset({"script", "style", "template", "svg", "iframe", "object", "select", "textarea"})
#: Elements that begin and end a paragraph.
_BLOCK_NAMES = """
address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure footer form
h1 h2 h3 h4 h5 h6 head header hgroup hr html legend li main menu nav ol p pre section summary table tbody td tfoot th
thead title tr ul
"""
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_META = re.compile(rb"<meta\s[^>]{0,200}?charset\s{0,9}=\s{0,9}[\"']?([\w:.-]{1,40})", re.IGNORECASE)
#: The encoding of a page must be named in this many bytes.
_META_BYTES = 1024
_BACKTICKS = re.compile("`{3,}")
#: Stands for a line break of the page until its paragraph ends. No text contains it, because it is a control character.
_BREAK = "\v"


def declared_encoding(content: bytes) -> str | None:
    """Return the encoding that a page names in its head; None if it names none. Raises UnreadableDocument."""
    found = _META.search(content[:_META_BYTES])
    if found is None:
        return None
    codec = find_encoding(found[1].decode("ascii", "replace"))
    # A page in which the name can be read as ASCII is not in UTF-16, whatever it says.
    return "utf-8" if codec.startswith(("utf-16", "utf-32")) else codec


def html_text(page: str) -> str:
    """Return the text of a page. Raises UnreadableDocument."""
    reader = _Page()
    try:
        reader.feed(page)
        reader.close()
    except AssertionError as error:  # html.parser's answer to some malformed declarations
        raise UnreadableDocument(f"the page is not HTML: {error}") from error
    return reader.text()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._blocks: list[str] = []
        self._inline: list[str] = []
        self._cells: list[str] | None = None
        self._prefix = ""
        #: The hidden element that is open, and how many of its name are.
        self._hidden, self._depth = "", 0
        self._verbatim = False

    def text(self) -> str:
        self._end_block()
        self._end_row()
        return "\n\n".join(self._blocks)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's
        if self._hidden:
            self._depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._depth = tag, 1
        elif tag == "br":
            self._inline.append(_BREAK)
        elif tag in _BLOCKS:
            self._end_block()
            self._begin(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # The slash of other elements does not close them.
        if tag not in _HIDDEN:
            self.handle_starttag(tag, attrs)

    def _begin(self, tag: str) -> None:
        if tag == "tr":
            self._end_row()
            self._cells = []
        elif tag == "pre":
            self._verbatim = True
        elif tag == "title":
            self._prefix = "# "
        elif tag == "li":
            self._prefix = "- "
        elif tag in _HEADINGS:
            self._prefix = _HEADINGS[tag]

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._depth -= tag == self._hidden
            if not self._depth:
                self._hidden = ""
        elif tag in _BLOCKS:
            self._end_block()
            self._prefix = self._prefix if tag == "p" else ""
            if tag in ("tr", "table"):
                self._end_row()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._inline.append(data)

    def _end_block(self) -> None:
        if not self._inline:
            self._verbatim = False
            return
        text = "".join(self._inline)
        self._inline.clear()
        if self._verbatim:
            text = text.replace(_BREAK, "\n").strip("\n")
            fence = "`" * (1 + max((len(run[0]) for run in _BACKTICKS.finditer(text)), default=2))
            text = f"{fence}\n{text}\n{fence}" if text.strip() else ""
        else:
            lines = (" ".join(line.split()) for line in text.split(_BREAK))
            text = (" " if self._prefix else "\n").join(filter(None, lines))
        self._verbatim = False
        if text:
            self._add(self._prefix + text)
            self._prefix = ""

    def _add(self, block: str) -> None:
        if self._cells is None:
            # A page's title is often its first heading too.
            if self._blocks[-1:] != [block]:
                self._blocks.append(block)
        else:
            self._cells.append(" ".join(block.split()))

    def _end_row(self) -> None:
        if self._cells:
            self._blocks.append("| " + " | ".join(self._cells) + " |")
        self._cells = None
