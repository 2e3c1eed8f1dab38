"""The formats of documents, and the error of a document that cannot be read."""

import re
from enum import StrEnum
from pathlib import PurePosixPath


class UnreadableDocument(ValueError):
    """The document cannot be read. The message says what is wrong, for the client that sent it."""


class Format(StrEnum):
    """How the text of a document is read."""

    TEXT = "text"
    HTML = "html"
    PDF = "pdf"
    JSON = "json"
    #: A JSON value in each line.
    JSON_LINES = "json lines"


_TYPES = {
    "application/pdf": Format.PDF,
    "application/x-pdf": Format.PDF,
    "text/html": Format.HTML,
    "application/xhtml+xml": Format.HTML,
    "application/json": Format.JSON,
    "text/json": Format.JSON,
    "application/jsonl": Format.JSON_LINES,
    "application/x-ndjson": Format.JSON_LINES,
    "application/x-jsonlines": Format.JSON_LINES,
}
_TEXTS = """
.md .markdown .txt .text .log .rst .csv .tsv .tex .xml .yaml .yml .toml .ini .sql .sh .css .lua .py .js .mjs .ts .c .h
.cc .cpp .hpp .cs .go .java .kt .php .rb .rs .swift
"""
_ENDINGS = {
    ".pdf": Format.PDF,
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".xhtml": Format.HTML,
    ".json": Format.JSON,
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
}
_ENDINGS |= dict.fromkeys(_TEXTS.split(), Format.TEXT)
#: Types that clients send for files that they do not know: the ending of the name is then looked at.
_VAGUE = ("", "application/octet-stream", "binary/octet-stream", "text/plain")
#: Types whose name does not say that they are text.
_TEXTUAL = re.compile(
    r"text/.+|application/(?:(?:[\w.-]+\+)?(?:xml|yaml)|x-(?:yaml|sh|tex|latex|python|httpd-php)|javascript|sql|toml)"
)
_CHARSET = re.compile(r";\s{0,9}charset\s{0,9}=\s{0,9}\"?([^\s\";]{1,40})", re.IGNORECASE)


def format_of(content_type: str, name: str) -> tuple[Format, str | None]:
    """Return the format of a document, and the encoding that its content type names. Raises UnreadableDocument."""
    mime = content_type.partition(";")[0].strip().lower()
    found = _CHARSET.search(content_type)
    charset = found[1] if found else None
    ending = PurePosixPath(name.replace("\\", "/")).suffix.lower()
    if mime in _VAGUE and ending in _ENDINGS:
        return _ENDINGS[ending], charset
    if mime in _TYPES:
        return _TYPES[mime], charset
    if mime.endswith("+json"):
        return Format.JSON, charset
    if _TEXTUAL.fullmatch(mime):
        return Format.TEXT, charset
    if mime in _VAGUE:
        known = " ".join(sorted(_ENDINGS))
        raise UnreadableDocument(
            f"the content type is {mime!r}, and the file name {name[:80]!r} ends with none of: {known}"
        )
    raise UnreadableDocument(
        f"documents of the content type {mime[:80]!r} cannot be read: send text, Markdown, HTML, PDF or JSON"
    )
