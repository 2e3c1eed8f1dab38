"""Fetches a JSON object from an issuer, within a limit of time and of bytes, and without following redirects."""

import contextlib
import http.client
import io
import json
import socket
import ssl
import threading
from functools import cache
from typing import Any, cast
from urllib.parse import urlsplit

from shared.settings.sign_in_roles import url_problem

#: The most time that one exchange may take after the name is resolved, in seconds, and the most bytes of an answer.
#: Discovery documents take about 5 KB, and the key sets of large issuers 20 KB.
EXCHANGE_S, MAX_BYTES = 4.0, 262_144
_CONNECT_S = 3.0


class FetchFailed(Exception):
    """Nothing useful came from the URL; the message says why, as the end of a sentence that begins with the URL."""


def fetch_object(url: str) -> dict[str, Any]:
    """Return the JSON object at an https URL, or at an http URL on a loopback address. Raises FetchFailed."""
    problem = url_problem(url, may_have_query=True)
    if problem:
        raise FetchFailed(problem)
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        plain = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        raise FetchFailed(f"cannot be reached: {error.strerror or error}") from None
    # The duplicate stays valid when TLS takes over the socket.
    guard, was_cut = plain.dup(), threading.Event()
    timer = threading.Timer(EXCHANGE_S, _cut, [guard, was_cut])
    timer.daemon = True
    timer.start()
    try:
        used = _tls().wrap_socket(plain, server_hostname=host) if is_tls else plain
        try:
            return _exchange(used, host, port, path)
        finally:
            used.close()
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        took_too_long = was_cut.is_set() or isinstance(error, TimeoutError)
        reason = f"it took longer than {EXCHANGE_S:g} s" if took_too_long else str(error)[:200]
        raise FetchFailed(f"gave no usable answer: {reason}") from None
    finally:
        timer.cancel()
        guard.close()
        plain.close()


class _Bounded(io.RawIOBase):
    """Reads a server's answer up to a number of bytes. Raises ValueError beyond it."""

    def __init__(self, connection: socket.socket, limit: int) -> None:
        self._connection, self._left, self._limit = connection, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise ValueError(f"it is longer than {self._limit} bytes")
        read = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= read
        return read

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Stand in for a socket: http.client calls only this method of it."""
        return io.BufferedReader(self)


def _exchange(connection: socket.socket, host: str, port: int, path: str) -> dict[str, Any]:
    connection.settimeout(EXCHANGE_S)
    request = http.client.HTTPConnection(host, port)
    request.sock = connection
    request.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
    with contextlib.closing(
        http.client.HTTPResponse(cast("socket.socket", _Bounded(connection, MAX_BYTES)), method="GET")
    ) as answer:
        answer.begin()
        if answer.status != 200:
            raise ValueError(f"its status is {answer.status}, not 200")
        found = json.loads(answer.read())
    if isinstance(found, dict):
        return found
    raise ValueError("it is not a JSON object")


def _cut(connection: socket.socket, was_cut: threading.Event) -> None:
    was_cut.set()
    # The server may have closed the connection.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@cache  # reading the certificates of the system takes tens of ms
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
