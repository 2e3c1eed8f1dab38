"""Reads and validates the lines of a batch's input file, one at a time; no I/O of its own."""

import hashlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shared.settings.door import DoorSettings
from web.http.api_errors import ApiError, quoted
from web.http.json_body import parse_json

#: The longest custom_id, in characters.
MAX_ID_CHARS = 512
#: The longest rest of a line besides the body of its request, in bytes.
_ENVELOPE_BYTES = 4_096
_FIELDS = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True)
class RawLine:
    """A line: its number from 1, where it begins in the file, and its bytes."""

    number: int
    offset: int
    #: None if the line is longer than a line may be.
    content: bytes | None
    #: Where the next line begins.
    end: int

    @property
    def is_blank(self) -> bool:
        """Whether the line has only white space; it is not a request then."""
        return self.content is not None and not self.content.strip()


@dataclass(frozen=True)
class RequestLine:
    """One request of a batch."""

    custom_id: str
    body: dict[str, Any]


def longest_line(settings: DoorSettings) -> int:
    """Return the most bytes that a line may have."""
    return settings.max_body_bytes + _ENVELOPE_BYTES


class BadLine(Exception):
    """A line that is not a request of its batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def read_lines(parts: Iterator[bytes], *, longest: int, number: int = 0, offset: int = 0) -> Iterator[RawLine]:
    """Yield the lines in the parts of a file that begin at `offset`, before which there are `number` lines.

    At most one part and one line of `longest` bytes are held in memory.
    """
    held, begin, is_long = bytearray(), offset, False
    for part in parts:
        start = 0
        while (stop := part.find(b"\n", start)) >= 0:
            number, end = number + 1, offset + stop + 1
            is_long = is_long or len(held) + stop - start > longest
            content = None if is_long else bytes(held) + part[start:stop]
            yield RawLine(number, begin, content, end)
            held, begin, start, is_long = bytearray(), end, stop + 1, False
        is_long = is_long or len(held) + len(part) - start > longest
        held = bytearray() if is_long else held + part[start:]
        offset += len(part)
    if is_long or held.strip():
        yield RawLine(number + 1, begin, None if is_long else bytes(held), offset)


def parse_line(line: RawLine, endpoint: str, longest: int) -> RequestLine:
    """Return the request in a line. Raises BadLine."""
    if line.content is None:
        raise BadLine("line_too_long", f"the line is longer than {longest} bytes")
    # Some editors and shells begin a file with a byte order mark.
    content = line.content if line.offset else line.content.removeprefix(BOM_UTF8)
    try:
        value = parse_json(content.strip())
    except ApiError as error:
        raise BadLine("invalid_json_line", error.message.replace("the body", "the line"), error.param) from None
    if not isinstance(value, dict):
        raise BadLine("invalid_json_line", f"the line is {quoted(value)} and no JSON object")
    custom_id, method, url, body = (value.get(name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS:
        message = f"custom_id={quoted(custom_id)} is no text of 1 to {MAX_ID_CHARS} characters"
        raise BadLine("invalid_custom_id", message, "custom_id")
    if method != "POST":
        raise BadLine("invalid_method", f"method={quoted(method)} is not 'POST'", "method")
    if url != endpoint:
        raise BadLine("mismatched_url", f"url={quoted(url)} is not the batch's endpoint, {endpoint!r}", "url")
    if not isinstance(body, dict):
        raise BadLine("invalid_body", f"body={quoted(body)} is no JSON object", "body")
    if unknown := sorted(value.keys() - _FIELDS):
        raise BadLine("invalid_field", f"unknown field {quoted(unknown[0])}", None)
    if body.get("stream"):
        raise BadLine("invalid_body", "body.stream: answers in a batch are not streamed", "body.stream")
    return RequestLine(custom_id, body)


#: The most invalid lines that are told.
_MAX_TOLD = 20


@dataclass(frozen=True)
class Validated:
    """The number of requests, and the errors of invalid lines in OpenAI's form."""

    total: int
    problems: list[dict[str, Any]]


def validate_lines(
    lines: Iterable[RawLine], *, endpoint: str, max_lines: int, longest: int, beat: Callable[[], None]
) -> Validated:
    """Validate all lines; `beat` is called after each of them.

    Of each custom_id, a digest of 16 bytes is held in memory. Blank lines are not requests, but count as lines.
    """
    total, problems, seen = 0, list[dict[str, Any]](), set[bytes]()
    for line in lines:
        if len(problems) >= _MAX_TOLD:
            break
        if line.number > max_lines:
            message = f"the file has more than {max_lines} lines (PENSTOCK_MAX_BATCH_LINES)"
            problems.append(_problem(BadLine("too_many_lines", message), line.number))
            break
        beat()
        if line.is_blank:
            continue
        total += 1
        try:
            request = parse_line(line, endpoint, longest)
            digest = hashlib.blake2b(request.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        except BadLine as bad:
            problems.append(_problem(bad, line.number))
            continue
        if digest in seen:
            message = f"custom_id={request.custom_id[:60]!r} is that of an earlier line too"
            problems.append(_problem(BadLine("duplicate_custom_id", message, "custom_id"), line.number))
        seen.add(digest)
    if not total:
        problems.append(_problem(BadLine("empty_file", "the file has no lines"), None))
    return Validated(total, problems)


def _problem(bad: BadLine, number: int | None) -> dict[str, Any]:
    return {"code": bad.code, "message": bad.message, "param": bad.param, "line": number}
