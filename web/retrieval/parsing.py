"""Reads documents in processes of their own, which are killed at their limits. The event loop of the door continues.

A document comes from a tenant, and the programs that read its format are large: a process that reads one has none of
the door's connections, files and secrets, and reads no second document.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from web.retrieval.formats.decoding import find_encoding
from web.retrieval.formats.documents import Format, UnreadableDocument, format_of
from web.retrieval.formats.text import read_text
from web.retrieval.parser_places import ParserPlaces

#: The process gets only these variables of the door, and so none of its passwords.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
_COMMAND = (sys.executable, "-P", "-s", "-m", "web.retrieval.formats.child")
#: Plain text of at most this many bytes is read in the door, which takes a millisecond. A process takes 50 ms to start.
_INLINE_BYTES = 65_536
#: How many processes there are at once.
_AT_ONCE = 2
_places = ParserPlaces(_AT_ONCE)
#: The most bytes of the line of JSON in front of the text, and of one read from a pipe.
_LINE_BYTES, _PIPE_BYTES = 8_192, 262_144
#: How long a process may take to end after it has written its answer, in seconds.
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """The most that reading one document may take."""

    #: The CPU time, in seconds, and that for a PDF file, whose pages take some hundredths of a second each.
    cpu_s: int = 10
    pdf_cpu_s: int = 60
    #: The time on the clock, in seconds: longer, because the machine may be busy.
    wall_s: float = 300.0
    memory_bytes: int = 512 << 20
    #: The bytes of the text.
    text_bytes: int = 8 << 20


LIMITS = ParseLimits()


def parse_file(
    content: bytes,
    content_type: str,
    name: str,
    until: float,
    *,
    tenant: str = "",
    limits: ParseLimits = LIMITS,
    command: Sequence[str] = _COMMAND,
) -> str:
    """Return the text of a file. Its format follows from the content type and the ending of its name.

    Raises UnreadableDocument, whose message is for the client, if it cannot be read within the limits and by `until`,
    in seconds of time.monotonic(). Raises ParsersBusy if no process may be started for the tenant by then.
    """
    kind, charset = format_of(content_type, name)
    if kind is Format.TEXT and len(content) <= _INLINE_BYTES:
        encoding = None if charset is None else find_encoding(charset)
        return read_text(content, kind, encoding, limits.text_bytes)
    with _places.place(tenant, until):
        wall_s = max(0.0, min(limits.wall_s, until - time.monotonic()))
        limits = replace(limits, cpu_s=limits.pdf_cpu_s if kind is Format.PDF else limits.cpu_s, wall_s=wall_s)
        asked = {"content_type": content_type, "name": name}
        return read_apart(content, asked, limits, command)[1].decode()


def parser_place(tenant: str, until: float) -> AbstractContextManager[None]:
    """Hold one of the places of processes for a tenant. Raises ParsersBusy, as `ParserPlaces.place`."""
    return _places.place(tenant, until)


def read_apart(
    content: bytes, described: dict[str, Any], limits: ParseLimits, command: Sequence[str]
) -> tuple[dict[str, Any], bytes]:
    """Return the line of JSON and the bytes that a process makes of a document. Raises UnreadableDocument.

    The caller holds a place.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        cwd="/",
        close_fds=True,
        start_new_session=True,
    )
    code: int | None = None
    try:
        asked = json.dumps(described | asdict(limits)).encode()
        output = _exchange(process, asked + b"\n" + content, limits)
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_END_S)
    finally:
        _end(process)
    line, _, text = output.partition(b"\n")
    answer = json.loads(line) if code == 0 and line else {}
    if "error" in answer:
        raise UnreadableDocument(answer["error"])
    if answer.get("bytes") != len(text):
        raise UnreadableDocument(_reason(code, limits))
    return answer, text


def _reason(code: int | None, limits: ParseLimits) -> str:
    """Return why a process did not answer, which ended with this code; a negative one is the number of a signal."""
    if code == -signal.SIGXCPU:
        return f"reading the document takes more than {limits.cpu_s} s of CPU time"
    if code == -signal.SIGKILL:
        return "the process that read the document was killed: reading it may take too much memory"
    ended = "did not end" if code is None else f"ended with {code}"
    return f"the document cannot be read: the process that read it {ended}"


def _exchange(process: "subprocess.Popen[bytes]", given: bytes, limits: ParseLimits) -> bytes:
    """Send the input of a process, and return its output.

    Raises UnreadableDocument if that takes longer than the limit, or if the output is larger.
    """
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    sink, source = process.stdin.fileno(), process.stdout.fileno()
    for fd in (sink, source):
        os.set_blocking(fd, False)
    # select() accepts no descriptor above 1023, and a door has more connections. The worker of gunicorn replaces both
    # with functions that let other greenlets run.
    pipes = select.poll()
    pipes.register(sink, select.POLLOUT)
    pipes.register(source, select.POLLIN)
    left, parts, size = memoryview(given), list[bytes](), 0
    until = time.monotonic() + limits.wall_s
    while True:
        ready = pipes.poll(1000 * max(0.0, until - time.monotonic()))
        if not ready:
            raise UnreadableDocument(f"reading the document takes more than {round(limits.wall_s, 3):g} s")
        for fd, _ in ready:
            if fd == sink:
                left = left[_write(sink, left) :]
                if not left:
                    pipes.unregister(sink)
                    process.stdin.close()
                continue
            part = _read(source)
            if part == b"":
                return b"".join(parts)
            parts.append(part or b"")
            size += len(parts[-1])
            if size > limits.text_bytes + _LINE_BYTES:
                raise UnreadableDocument(f"the text of the document has more than {limits.text_bytes} bytes")


def _write(fd: int, left: memoryview) -> int:
    """Return how many bytes a pipe took: all, if nobody reads them any more."""
    try:
        return os.write(fd, left[:_PIPE_BYTES])
    except BlockingIOError:
        return 0
    except OSError:
        return len(left)


def _read(fd: int) -> bytes | None:
    """Return the next bytes of a pipe: none at its end, and None if none have arrived."""
    try:
        return os.read(fd, _PIPE_BYTES)
    except BlockingIOError:
        return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process with those that it started, and close its pipes."""
    if process.returncode is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()
