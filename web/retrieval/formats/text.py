"""Reads the text of a document in one of the formats."""

from web.retrieval.formats.decoding import clean, decode
from web.retrieval.formats.documents import Format, UnreadableDocument
from web.retrieval.formats.html_text import html_text
from web.retrieval.formats.json_text import json_text
from web.retrieval.formats.pdf_text import pdf_text


def read_text(content: bytes, kind: Format, encoding: str | None, max_bytes: int) -> str:
    """Return the text of a document, whose encoding is None if it does not name one.

    Raises UnreadableDocument, also if it has no text, or one of more than `max_bytes`.
    """
    if kind is Format.PDF:
        text = pdf_text(content, max_chars=max_bytes)
    else:
        text = clean(decode(content, encoding))
        if kind is Format.HTML:
            text = html_text(text)
        elif kind is not Format.TEXT:
            text = json_text(text, lines=kind is Format.JSON_LINES, max_chars=max_bytes)
    text = clean(text)
    if not text.strip():
        raise UnreadableDocument("the document contains no text")
    size = len(text.encode())
    if size > max_bytes:
        raise UnreadableDocument(f"the text of the document has {size} bytes, and the most is {max_bytes}")
    return text
