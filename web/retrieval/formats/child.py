"""The process that reads one document: `python -m web.retrieval.formats.child`, started by `web.retrieval.parsing`.

Its input is a line of JSON and then the document; its output is a line of JSON and then the text. Before it looks at
the document it bounds its own CPU time and memory, and gives up the right to open files and connections.
"""

import contextlib
import json
import resource
import sys
from typing import Any

from web.retrieval.formats.decoding import find_encoding, load_codecs
from web.retrieval.formats.documents import Format, UnreadableDocument, format_of
from web.retrieval.formats.html_text import declared_encoding
from web.retrieval.formats.pdf_text import load_pypdf
from web.retrieval.formats.text import read_text


def main() -> None:
    source = sys.stdin.buffer
    asked = json.loads(source.readline())
    bound(asked["cpu_s"], asked["memory_bytes"])
    text = b""
    answer: dict[str, Any]
    try:
        content = source.read()
        text = _text(asked, content).encode()
        answer = {"bytes": len(text)}
    except UnreadableDocument as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"reading the document takes more than {asked['memory_bytes'] >> 20} MiB of memory"}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def bound(cpu_s: int, memory_bytes: int) -> None:
    """Bound the CPU time and the memory of this process: the kernel ends it after `cpu_s` seconds of CPU time."""
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    _set_limit(resource.RLIMIT_AS, memory_bytes)


def give_up_files() -> None:
    """Give up opening files and connections, writing to files, and starting processes. No module is imported later.

    Standard input and output stay open. The superuser may start processes all the same.
    """
    _set_limit(resource.RLIMIT_FSIZE, 0)
    _set_limit(resource.RLIMIT_NPROC, 0)
    # The descriptors that are open stay so, and no further one is below this number.
    _set_limit(resource.RLIMIT_NOFILE, 0)


def _set_limit(which: int, limit: int, hard: int | None = None) -> None:
    # Not every system has each limit, and a lower one cannot be raised.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (limit, limit if hard is None else hard))


def _text(asked: dict[str, Any], content: bytes) -> str:
    kind, charset = format_of(asked["content_type"], asked["name"])
    encoding = None if charset is None else find_encoding(charset)
    if kind is Format.HTML:
        encoding = encoding or declared_encoding(content)
    elif kind is Format.PDF:
        load_pypdf()
    load_codecs(encoding)
    give_up_files()
    return read_text(content, kind, encoding, asked["text_bytes"])


if __name__ == "__main__":
    main()
