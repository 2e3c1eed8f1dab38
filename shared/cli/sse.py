"""Parse HTTP response bodies: a text/event-stream, or one JSON object."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event. `kind` is the event's name and `data` is the JSON object it carries."""

    id: str
    kind: str
    data: dict[str, Any]


def read_events(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """Yield the events in the lines of a text/event-stream (WHATWG HTML, § server-sent events), but no comments."""
    event_id, kind, data = "", "", ""
    for line in lines:
        name, _, value = line.rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        if line.rstrip("\r\n") == "":
            if data:
                yield ServerEvent(event_id, kind or "message", parse_json_object(data.encode()))
            kind, data = "", ""
        elif name == "id":
            event_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data += value if not data else f"\n{value}"


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a response body.

    If the body is anything else, such as a proxy's HTML page, return an error object that quotes its beginning.
    """
    try:
        parsed = json.loads(raw)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    return {"error": {"message": f"the response is not a JSON object: {raw[:80]!r}", "code": "invalid_answer"}}
