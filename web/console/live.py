"""`/console/live`: the panels of the console as server-sent events, each whenever it has changed."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

from apiflask import APIBlueprint
from flask import Response, request

from shared.clock import Clock
from shared.errors import StoreUnavailable
from web.api.stream_format import frame
from web.console.current import current_feed
from web.console.feed import ConsoleFeed
from web.http import shutdown
from web.http.disconnect import watch_disconnect
from web.request.caller import watch_admin
from web.request.sse import stream_response, with_comments
from web.runtime.current import current_context

#: How long a browser should wait before it connects again, in ms.
_RETRY_MS = 2_000
#: A stream ends after this many seconds, and the browser connects again: streams that nobody looks at do not stay open.
_LONGEST_S = 900.0
#: Seconds between two checks that the operator's key still exists.
_CHECK_KEY_S = 5.0
#: At most this many bytes wait in the kernel for a viewer that reads nothing. When they are full, the connection is
#: closed after web.server.worker.SOCKET_TIMEOUT_S.
_SEND_BUFFER_BYTES = 16 * 1024


def add_routes(bp: APIBlueprint) -> None:
    """Add the route of the stream."""

    @bp.get("/live")
    def live() -> Response:
        feed = current_feed()
        return stream(feed, _panel_frames(feed, when_to_stop(current_context().clock)))


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
    has_left, is_admin = watch_disconnect(request.environ), watch_admin()
    began_s = checked_s = clock.monotonic()

    def must_stop() -> bool:
        nonlocal checked_s
        now_s = clock.monotonic()
        if now_s - checked_s >= _CHECK_KEY_S:
            checked_s = now_s
            try:
                if not is_admin():
                    return True
            except StoreUnavailable:
                # The panels say that the store does not answer. The key is checked again with the next look.
                pass
        return has_left() or shutdown.requested.is_set() or now_s - began_s > _LONGEST_S

    return must_stop


def _panel_frames(feed: ConsoleFeed, must_stop: Callable[[], bool]) -> Iterator[str]:
    yield frame("history", feed.points())
    shown: dict[str, str] = {}
    seen = 0
    while not must_stop():
        made = feed.next_pass(seen, timeout_s=1.0)
        if made is None:
            yield ""
            continue
        seen = made.number
        changed = {name: html for name, html in made.panels.items() if shown.get(name) != html}
        shown |= changed
        frames = [html_frame(name, html) for name, html in changed.items()]
        yield "".join(frames) + ("" if made.point is None else frame("point", made.point))


def html_frame(name: str, html: str) -> str:
    """Return the frame of an event whose data is HTML. A carriage return, which would end a line, becomes a space."""
    lines = html.replace("\r", " ").split("\n")
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"
