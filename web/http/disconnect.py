"""Detect that a client has closed its connection, without reading from the connection.

A route must rely on this check alone to decide that its client has disconnected. An exception in the route is not
sufficient evidence, because it may also be raised when this process stops and closes the connection.
"""

import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

from gevent import monkey

#: The time between two checks of a waiting call's connection, in seconds. A disconnect is detected within 250 ms.
CHECK_INTERVAL_S = 0.2

_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


def watch_disconnect(environ: Mapping[str, Any]) -> Callable[[], bool]:
    """Return a function that returns whether this request's client has closed its connection.

    The returned function always returns False if the server, such as Flask's test client, does not put the socket into
    `environ`.
    """
    connection = environ.get("gunicorn.socket")
    if connection is None:
        return lambda: False

    def client_has_closed() -> bool:
        try:
            return _closed(connection)
        except (OSError, ValueError):
            return True

    return client_has_closed


#: gevent's poll does not support POLLRDHUP, so the original is used. With a timeout of 0, it does not block.
_poll = monkey.get_original("select", "poll")


def _closed(connection: socket.socket) -> bool:
    poller = _poll()
    poller.register(connection.fileno(), select.POLLIN | _HANGUP)
    events = [flags for _, flags in poller.poll(0)]
    if any(flags & _HANGUP for flags in events):
        return True
    # Without POLLRDHUP, a closed connection is readable but has no data. Any data belongs to the next request.
    return bool(events) and connection.recv(1, socket.MSG_PEEK) == b""
