"""Reads the text of a PDF file with pypdf, which is imported only here, and only for a PDF file."""

import logging
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from web.retrieval.formats.documents import UnreadableDocument

#: The mark of a PDF file is in its first bytes.
_HEADER_BYTES = 1024
#: The most characters that are quoted from an error of pypdf.
_QUOTED = 200


def load_pypdf() -> None:
    """Import pypdf with the modules that it imports late. Raises UnreadableDocument if it is not installed."""
    try:
        import pypdf  # noqa: PLC0415 - it takes 0.1 s, and only PDF files need it
        import pypdf._text_extraction  # noqa: PLC0415
        import pypdf.filters  # noqa: PLC0415
    except ImportError:
        message = (
            "PDF files cannot be read here: the operator must install the extra, pip install 'penstock[retrieval]'"
        )
        raise UnreadableDocument(message) from None
    # No other program is started for pictures, whose text is not read.
    pypdf.overwrite_configuration(jbig2dec_binary=None, disable_legacy_handling=True)
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)


def pdf_text(content: bytes, *, max_chars: int) -> str:
    """Return the text of all pages, each a paragraph. `load_pypdf` must have been called. Raises UnreadableDocument."""
    from pypdf import PdfReader  # noqa: PLC0415
    from pypdf.errors import DependencyError, FileNotDecryptedError  # noqa: PLC0415

    if b"%PDF-" not in content[:_HEADER_BYTES]:
        raise UnreadableDocument("the content is not a PDF file: it does not begin with %PDF-")
    try:
        reader = PdfReader(BytesIO(content))
        is_open = not reader.is_encrypted or bool(reader.decrypt(""))
        pages = list(_first_pages(reader.pages, max_chars)) if is_open else []
    except (FileNotDecryptedError, DependencyError, NotImplementedError) as error:
        raise UnreadableDocument(f"the PDF file is encrypted, and cannot be read: {str(error)[:_QUOTED]}") from error
    except MemoryError:
        raise
    except RecursionError as error:
        raise UnreadableDocument("the objects of the PDF file are nested too deeply") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:_QUOTED]
        raise UnreadableDocument(f"the PDF file is damaged, and cannot be read: {reason}") from error
    if not is_open:
        raise UnreadableDocument("the PDF file is encrypted, and can be read only with its password")
    if sum(map(len, pages)) > max_chars:
        raise UnreadableDocument(f"the text of the first {len(pages)} pages has over {max_chars} characters")
    if not any(pages):
        raise UnreadableDocument(f"the PDF file has no text on its {len(pages)} pages, which may be pictures")
    return "\n\n".join(filter(None, pages))


def _first_pages(pages: Iterable[Any], max_chars: int) -> Iterator[str]:
    """Yield the text of each page, until they have more characters together."""
    size = 0
    for page in pages:
        text = page.extract_text().strip()
        size += len(text)
        yield text
        if size > max_chars:
            return
