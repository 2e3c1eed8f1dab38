"""The console's live streams: panels of a page, each whenever it has changed, for a bounded number of viewers."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from flask import Response, request

from shared.clock import Clock
from web.api.stream_format import frame
from web.console.feed import ConsoleFeed, Pass, current_feed
from web.console.guard import bp
from web.http import shutdown
from web.http.disconnect import watch_disconnect
from web.request.caller import watch_admin
from web.request.responses import stream_response, with_comments
from web.runtime.current import current_context
from web.runtime.shared_answer import seldom

#: How long a browser should wait before it connects again, in ms.
_RETRY_MS = 2_000
#: A stream ends after this many seconds, and the browser connects again: streams that nobody looks at do not stay open.
_LONGEST_S = 900.0
#: Seconds between two checks that the operator's key still exists.
_CHECK_KEY_S = 5.0
#: At most this many bytes wait in the kernel for a viewer that reads nothing. When they are full, the connection is
#: closed after web.server.worker.SOCKET_TIMEOUT_S.
_SEND_BUFFER_BYTES = 16 * 1024


@bp.get("/live")
def live() -> Response:
    """Stream the panels of the board."""
    feed = current_feed()
    return stream(feed, _board_frames(feed, when_to_stop(current_context().clock)))


def stream(feed: ConsoleFeed, frames: Iterator[str]) -> Response:
    """Return a response that streams the frames to a new viewer. Raises ApiError (503) if there are too many."""
    connection = request.environ.get("gunicorn.socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    leave, clock = feed.join(), current_context().clock

    def all_frames() -> Iterator[str]:
        yield f"retry: {_RETRY_MS}\n\n"
        yield from with_comments(frames, clock)

    response = stream_response(all_frames())
    response.call_on_close(leave)
    return response


def when_to_stop(clock: Clock) -> Callable[[], bool]:
    """Return a function that returns whether the stream of this request must end. It is called about once a second."""
    has_left, is_admin, began_s = watch_disconnect(request.environ), watch_admin(), clock.monotonic()
    # While the store does not answer, the panels say so, and the key is checked again with the next look.
    has_lost_key = seldom(lambda: not is_admin(), _CHECK_KEY_S, clock)

    def must_stop() -> bool:
        is_over = shutdown.requested.is_set() or clock.monotonic() - began_s > _LONGEST_S
        return is_over or has_left() or has_lost_key()

    return must_stop


def _board_frames(feed: ConsoleFeed, must_stop: Callable[[], bool]) -> Iterator[str]:
    yield frame("history", feed.points())
    yield from panel_frames(
        feed,
        must_stop,
        lambda made: made.panels,
        lambda made: "" if made.point is None else frame("point", made.point),
    )


def panel_frames(
    feed: ConsoleFeed,
    must_stop: Callable[[], bool],
    panels_of: Callable[[Pass], Mapping[str, str]],
    further: Callable[[Pass], str] = lambda _: "",
) -> Iterator[str]:
    """Yield the frames of those panels that have changed with each pass, and what `further` returns for the pass."""
    shown: dict[str, str] = {}
    seen = 0
    while not must_stop():
        made = feed.next_pass(seen, timeout_s=1.0)
        if made is None:
            yield ""
            continue
        seen = made.number
        changed = {name: html for name, html in panels_of(made).items() if shown.get(name) != html}
        shown |= changed
        yield "".join(html_frame(name, html) for name, html in changed.items()) + further(made)


def html_frame(name: str, html: str) -> str:
    """Return the frame of an event whose data is HTML. A carriage return, which would end a line, becomes a space."""
    lines = html.replace("\r", " ").split("\n")
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"
