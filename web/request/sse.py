"""Server-sent events: format frames, add comments that keep a silent stream open, and build the response."""

import json
from collections.abc import Iterable, Iterator

from flask import Response

from shared.clock import Clock

#: After this many seconds without a frame, a comment is sent. The time is shorter than the idle timeout of common
#: proxies, and the comment shows the client that the connection still works.
COMMENT_S = 5.0
COMMENT = ":\n\n"
#: The first header prevents caching, and the second one prevents nginx from buffering the frames.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def frame(kind: str, data: object, event_id: str = "") -> str:
    """Return the frame of an event with the name `kind`. If `event_id` is "", the frame has no id."""
    id_line = f"id: {event_id}\n" if event_id else ""
    return f"{id_line}event: {kind}\n{data_frame(data)}"


def data_frame(data: object) -> str:
    """Return the frame of an event without a name. JSON escapes line ends, so the data always fits on one line."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def with_comments(frames: Iterable[str], clock: Clock, comment: str = COMMENT) -> Iterator[str]:
    """Yield the frames that are not empty, and `comment` whenever nothing was sent for COMMENT_S seconds.

    The source must yield an empty frame from time to time while it has nothing to send.
    """
    written_s = clock.monotonic()
    for text in frames:
        if text:
            yield text
        elif clock.monotonic() - written_s >= COMMENT_S:
            yield comment
        else:
            continue
        written_s = clock.monotonic()


def stream_response(frames: Iterator[str]) -> Response:
    """Return a response that sends the frames as they are produced."""
    return Response(frames, mimetype="text/event-stream", headers=_HEADERS)
