"""Decodes the bytes of a document, and removes what a text must not contain."""

import codecs
import re

from web.retrieval.formats.documents import UnreadableDocument

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: Encodings of text whose decoders take linear time. In web pages, the first three mean windows-1252.
_WEB_LATIN = ("iso8859-1", "ascii", "latin-1")
_ENCODINGS = re.compile(
    r"utf-(?:8|16|32)(?:-[bl]e)?|ascii|iso8859-\d+|latin-1|cp(?:125\d|437|850|866|874|932|949|950)|koi8-[ru]|mac-roman"
    r"|gb2312|gbk|gb18030|big5|shift_jis|euc_(?:jp|kr)|iso2022_jp|tis-620"
)
#: All control characters but tab, line feed and form feed.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f]")
_BINARY = ((b"PK\x03\x04", "a zip file"), (b"%PDF-", "a PDF file"), (b"\x1f\x8b", "a gzip file"), (b"\x89PNG", "a PNG"))


def find_encoding(name: str) -> str:
    """Return the name of the codec for an encoding. Raises UnreadableDocument if it is unknown or not one of text."""
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        codec = ""
    if not _ENCODINGS.fullmatch(codec):
        raise UnreadableDocument(f"the encoding {name[:40]!r} is not known")
    return codec


def load_codecs(encoding: str | None) -> None:
    """Load the codecs that `decode` may use, because their modules cannot be imported later."""
    for codec in (encoding or "utf-8", "cp1252", *(codec for _, codec in _MARKS)):
        codecs.lookup(codec)


def decode(content: bytes, encoding: str | None) -> str:
    """Return the text of a document. `encoding` is the codec's name; None if the document does not name one.

    The mark at the beginning of a Unicode text takes precedence. Raises UnreadableDocument, which names the first byte
    that is wrong.
    """
    for mark, codec in _MARKS:
        if content.startswith(mark):
            return _decoded(content[len(mark) :], codec, named=True)
    for magic, what in _BINARY:
        if content.startswith(magic):
            raise UnreadableDocument(f"the content is {what} and not text: its content type or its name is wrong")
    return _decoded(content, encoding or "utf-8", named=encoding is not None)


def _decoded(content: bytes, codec: str, *, named: bool) -> str:
    if not codec.startswith(("utf-16", "utf-32")) and (at := content.find(b"\0")) >= 0:
        raise UnreadableDocument(f"the content is not text: byte {at} is 0")
    try:
        return content.decode("cp1252" if named and codec in _WEB_LATIN else codec)
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is 0x{content[error.start]:02x}"
    hint = "" if named else "; name the encoding in the content type, as in `text/plain; charset=windows-1252`"
    raise UnreadableDocument(f"the content is not {codec.upper()}: {wrong}{hint}")


def clean(text: str) -> str:
    """Return the text with line feeds as its only line ends, and without control characters and halves of pairs."""
    text = _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return text if text.isascii() else text.encode(errors="replace").decode()
