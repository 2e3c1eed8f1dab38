"""Validates all lines of a batch's input file, and tells by their numbers those that are not requests."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from web.batches.lines import BadLine, RawLine, parse_line

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
