"""Writes small PDF files."""

import zlib
from collections.abc import Sequence


def stream(content: bytes, *, compressed: bool = False) -> bytes:
    """Return a stream object."""
    data, about = (zlib.compress(content), b" /Filter /FlateDecode") if compressed else (content, b"")
    return b"<< /Length %d%s >>\nstream\n%s\nendstream" % (len(data), about, data)


def pdf(objects: Sequence[bytes], *, trailer: bytes = b"") -> bytes:
    """Return a file with these objects, numbered from 1; the first one is the catalog."""
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer, table)
    return bytes(out)


def pdf_of_pages(pages: Sequence[bytes], *, trailer: bytes = b"", compressed: bool = False) -> bytes:
    """Return a file with a page for each content stream; the font is F1."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, content in enumerate(pages):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number),
            stream(content, compressed=compressed),
        ]
    return pdf(objects, trailer=trailer)


def shown(text: str) -> bytes:
    """Return the content of a page that shows a text."""
    escaped = text.encode("cp1252").replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)")
    return b"BT /F1 12 Tf 72 720 Td (%s) Tj ET" % escaped
