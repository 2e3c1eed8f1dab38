"""Has the client gone? Asked of the connection itself, without reading from it.

Only a close that was seen counts: a connection that ends because this process stops is no wish of
the client, so nothing is ever concluded from an exception alone.
"""

import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

from gevent import monkey

#: How often a call that waits looks at its connection, in seconds; a close is seen within 250 ms.
LOOK_S = 0.2

_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


def watch_disconnect(environ: Mapping[str, Any]) -> Callable[[], bool]:
    """Whether this request's client has closed its connection, as a question that may be asked again and again.

    Servers that do not tell their socket (the test client) always answer no.
    """
    connection = environ.get("gunicorn.socket")
    if connection is None:
        return lambda: False

    def gone() -> bool:
        try:
            return _closed(connection)
        except (OSError, ValueError):
            return True

    return gone


def _closed(connection: socket.socket) -> bool:
    # The original: it never waits here, and gevent's does not know POLLRDHUP.
    poller = monkey.get_original("select", "poll")()
    poller.register(connection.fileno(), select.POLLIN | _HANGUP)
    events = [flags for _, flags in poller.poll(0)]
    if any(flags & _HANGUP for flags in events):
        return True
    # Systems without POLLRDHUP tell a close as readable and empty; a next request waiting there is no close.
    return bool(events) and connection.recv(1, socket.MSG_PEEK) == b""
