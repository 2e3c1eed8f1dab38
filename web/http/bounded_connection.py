"""A connection to a server that is not trusted: each exchange ends within a limit of time and of bytes."""

import contextlib
import http.client
import io
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Self, cast


class BoundedConnection:
    """A connection that is shut down at a time, whatever it waits for; a limit for each read could be prolonged."""

    def __init__(self, plain: socket.socket, limit_s: float) -> None:
        self._socket, self._was_cut = plain, False
        plain.settimeout(limit_s)
        # The duplicate stays valid when TLS takes over the socket.
        self._guard = plain.dup()
        self._timer = self._start(limit_s)

    def limit(self, limit_s: float) -> None:
        """Replace the limit by another one that begins now."""
        self._timer.cancel()
        self._timer = self._start(limit_s)
        self._socket.settimeout(limit_s)

    def start_tls(self, host: str) -> None:
        """Check the server's certificate for the host. Raises OSError."""
        self._socket = _tls().wrap_socket(self._socket, server_hostname=host)

    @contextlib.contextmanager
    def exchange(
        self, method: str, host: str, port: int, path: str, headers: Mapping[str, str], body: bytes = b"", *, most: int
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield the answer once its head has arrived. At most `most` bytes of it are read.

        Raises OSError, HTTPException, or ValueError if there are more bytes.
        """
        request = http.client.HTTPConnection(host, port)
        request.sock = self._socket
        source = _Source(self._socket, most)
        answer = http.client.HTTPResponse(cast("socket.socket", source), method=method)
        with contextlib.closing(answer):
            request.request(method, path, body or None, dict(headers))
            answer.begin()
            # http.client takes a head that breaks off for a whole one.
            if source.has_ended:
                raise http.client.IncompleteRead(b"")
            yield answer

    def took_too_long(self, error: Exception) -> bool:
        """Return whether a limit ended the exchange: the timer's, or that of a single read, which may be first."""
        return self._was_cut or isinstance(error, TimeoutError)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._guard.close()
        self._socket.close()

    def _start(self, limit_s: float) -> threading.Timer:
        timer = threading.Timer(limit_s, self._cut)
        timer.daemon = True
        timer.start()
        return timer

    def _cut(self) -> None:
        self._was_cut = True
        # The server may have closed the connection.
        with contextlib.suppress(OSError):
            self._guard.shutdown(socket.SHUT_RDWR)


class _Source(io.RawIOBase):
    """Reads a server's answer up to a number of bytes. Raises ValueError beyond it."""

    def __init__(self, connection: socket.socket, most: int) -> None:
        self._connection, self._left, self._most = connection, most, most
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise ValueError(f"it is longer than {self._most} bytes")
        read = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= read
        self.has_ended = read == 0
        return read

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Stand in for a socket: http.client calls only this method of it."""
        return io.BufferedReader(self)


@cache  # reading the certificates of the system takes tens of ms
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
