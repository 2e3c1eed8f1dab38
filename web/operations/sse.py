"""Server-sent events: one frame, the comments that keep a silent stream open, the response that carries them."""

import json
from collections.abc import Iterable, Iterator

from flask import Response

from shared.clock import Clock

#: Below the idle time-out of any proxy; also how a reader knows that the stream lives.
COMMENT_S = 5.0
COMMENT = ":\n\n"
#: No cache keeps a stream, and nginx does not hold its frames back.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def frame(kind: str, data: object, event_id: str = "") -> str:
    """One named event, with an id if it has one."""
    name = f"id: {event_id}\n" if event_id else ""
    return f"{name}event: {kind}\n{data_frame(data)}"


def data_frame(data: object) -> str:
    """One event without a name. JSON escapes line ends, so that data is always one line."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def with_comments(frames: Iterable[str], clock: Clock) -> Iterator[str]:
    """The frames, and a comment after COMMENT_S without one. An empty frame says that nothing happened."""
    wrote_s = clock.monotonic()
    for text in frames:
        if text:
            yield text
        elif clock.monotonic() - wrote_s >= COMMENT_S:
            yield COMMENT
        else:
            continue
        wrote_s = clock.monotonic()


def stream_response(frames: Iterator[str]) -> Response:
    """The response that sends the frames as they come."""
    return Response(frames, mimetype="text/event-stream", headers=_HEADERS)
