"""Server-sent events: add comments that keep a silent stream open, and build the response."""

from collections.abc import Iterable, Iterator

from flask import Response

from shared.clock import Clock
from web.api.stream_format import COMMENT

#: After this many seconds without a frame, a comment is sent. The time is shorter than the idle timeout of common
#: proxies, and the comment shows the client that the connection still works.
COMMENT_S = 5.0
#: The first header prevents caching, and the second one prevents nginx from buffering the frames.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


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
