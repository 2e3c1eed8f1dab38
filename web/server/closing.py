"""Close a connection so that its client can still read the response, even if the client has not finished sending."""

import json
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import gevent

from web.http.api_errors import ApiError, error_response

#: How long, and for how many bytes, a connection that was answered is still read and its bytes thrown away. If the
#: connection were closed while bytes arrive, the kernel would send a reset, and the client could lose the response. A
#: client that sends its whole body before it reads, as `requests` does, has sent 16 MiB within this time.
LINGER_S, LINGER_MAX_BYTES = 2.0, 16 * 1_048_576
#: The pause after each piece, in seconds. It limits the reads that a connection can cause to 64 MB a second.
_PAUSE_S = 0.001
#: How often the wait for the client's end checks whether this process is stopping, in seconds.
_CHECK_S = 0.1
#: Where every connection's unwanted bytes are written to. Nobody reads them.
_DISCARDED = bytearray(65_536)


def close_gently(sock: Any, *, hurry: Callable[[], bool], seconds: float = LINGER_S) -> None:
    """Send the end of the stream, throw away what the client still sends, and close when the client has closed.

    The socket is closed at the latest after `seconds` or LINGER_MAX_BYTES, or as soon as `hurry` returns True.
    """
    try:
        sock.shutdown(socket.SHUT_WR)
        _discard(sock, hurry, time.monotonic() + seconds)
    except OSError:
        # The client has already closed the connection.
        pass
    finally:
        sock.close()


def _discard(sock: Any, hurry: Callable[[], bool], until_s: float) -> None:
    left_bytes = LINGER_MAX_BYTES
    while left_bytes > 0 and not hurry() and (left_s := until_s - time.monotonic()) > 0:
        sock.settimeout(min(left_s, _CHECK_S))
        try:
            count = sock.recv_into(_DISCARDED)
        except TimeoutError:
            continue
        if not count:
            return
        left_bytes -= count
        gevent.sleep(_PAUSE_S)


#: How long the client may take to make room for the error, in seconds. An error is shorter than any socket buffer.
_SEND_TIMEOUT_S = 1.0


def send_error(sock: Any, error: ApiError) -> str:
    """Send the response for an error, and return its request id. Errors of the connection are ignored."""
    request_id = secrets.token_hex(16)
    response = error_response(error)
    body = json.dumps(response.body).encode() + b"\n"
    headers = {"x-request-id": request_id, "Content-Type": "application/json", "Content-Length": len(body)}
    lines = [f"{name}: {value}" for name, value in (headers | response.headers | {"Connection": "close"}).items()]
    head = "\r\n".join([f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}", *lines, "", ""])
    with suppress(OSError):
        sock.settimeout(_SEND_TIMEOUT_S)
        sock.sendall(head.encode() + body)
    return request_id
