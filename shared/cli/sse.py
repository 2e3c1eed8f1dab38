"""Read what an HTTP server streams: text/event-stream, and the JSON object in an answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServerEvent:
    """One event of a stream. `kind` is its name, `data` the JSON object it carries."""

    id: str
    kind: str
    data: dict[str, Any]


def read_events(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """Events out of the lines of a text/event-stream (WHATWG HTML, § server-sent events); comments are skipped."""
    event_id, kind, data = "", "", ""
    for line in lines:
        name, _, value = line.rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        if line.rstrip("\r\n") == "":
            if data:
                yield ServerEvent(event_id, kind or "message", object_in(data.encode()))
            kind, data = "", ""
        elif name == "id":
            event_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data += value if not data else f"\n{value}"


def object_in(raw: bytes) -> dict[str, Any]:
    """The object in an answer; what is none (a proxy's page) becomes an error object that quotes its beginning."""
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    return {"error": {"message": f"an answer that is no JSON object: {raw[:80]!r}", "code": "invalid_answer"}}
