"""Sends one webhook: resolves the host once, checks its addresses, and connects to a checked address."""

import contextlib
import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self, cast

from shared.store.webhook_results import WebhookResult
from web.http.callback_addresses import is_public
from web.http.callback_url import CallbackTarget
from web.webhooks.names import Resolve

#: The time limits of one try after its name is resolved, in seconds: to connect, with the TLS handshake, and to answer.
CONNECT_S, ANSWER_S = 5.0, 10.0
#: So many of a host's addresses are tried.
_MAX_ADDRESSES = 3
#: How much of an answer is read, in bytes: its head and the beginning of its body.
_MAX_HEAD, _MAX_BODY = 32_768, 4_096


class Failed(Exception):
    """The try has failed before the receiver answered."""

    def __init__(self, result: WebhookResult) -> None:
        super().__init__(result.value)
        self.result = result


def post(
    target: CallbackTarget, body: bytes, headers: Mapping[str, str], *, is_listed: bool, resolve: Resolve
) -> WebhookResult:
    """Send a webhook and return how that ended. `is_listed` allows addresses that are not public.

    Raises what `resolve` raises, except OSError.
    """
    try:
        addresses = resolve(target.host, target.port)
    except OSError:
        return WebhookResult.NOT_RESOLVED
    # One address that is not public is enough to refuse: the owner of the name chooses which of them come first.
    if not is_listed and not all(map(is_public, addresses)):
        return WebhookResult.REFUSED_ADDRESS
    try:
        with _connect(target, addresses) as connection:
            return _exchange(connection, target, body, headers)
    except Failed as failed:
        return failed.result


class _Connection:
    """A connection that is shut down at a time, whatever it waits for; a limit for each read could be prolonged."""

    def __init__(self, plain: socket.socket, limit_s: float) -> None:
        self.socket, self.was_cut = plain, False
        # The duplicate stays valid when TLS takes over the socket.
        self._guard = plain.dup()
        self._timer = self._start(limit_s)

    def limit(self, limit_s: float) -> None:
        """Replace the limit by another one that begins now."""
        self._timer.cancel()
        self._timer = self._start(limit_s)
        self.socket.settimeout(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._guard.close()
        self.socket.close()

    def _start(self, limit_s: float) -> threading.Timer:
        timer = threading.Timer(limit_s, self._cut)
        timer.daemon = True
        timer.start()
        return timer

    def _cut(self) -> None:
        self.was_cut = True
        # The receiver may have closed the connection.
        with contextlib.suppress(OSError):
            self._guard.shutdown(socket.SHUT_RDWR)


def _connect(target: CallbackTarget, addresses: Sequence[str]) -> _Connection:
    """Return a connection to the first address that accepts one, after the TLS handshake. Raises Failed."""
    ends_s = time.monotonic() + CONNECT_S
    for address in addresses[:_MAX_ADDRESSES]:
        left_s = max(0.1, ends_s - time.monotonic())
        try:
            plain = socket.create_connection((address, target.port), timeout=left_s)
        except OSError:
            continue
        connection = _Connection(plain, max(0.1, ends_s - time.monotonic()))
        if target.scheme == "https":
            _start_tls(connection, target)
        return connection
    raise Failed(WebhookResult.TIMED_OUT if time.monotonic() >= ends_s else WebhookResult.UNREACHABLE)


def _start_tls(connection: _Connection, target: CallbackTarget) -> None:
    try:
        connection.socket = _tls().wrap_socket(connection.socket, server_hostname=target.host)
    except OSError as error:
        with connection:
            raise Failed(_result_of(error, connection, WebhookResult.TLS_FAILED)) from None


@cache  # reading the certificates of the system takes tens of ms
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Answer(io.RawIOBase):
    """Reads a receiver's answer, which seems to end after a number of bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._left = connection, _MAX_HEAD + _MAX_BODY
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._connection.recv_into(buffer, min(len(buffer), self._left)) if self._left else 0
        self._left -= read
        self.has_ended = read == 0
        return read

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Stand in for a socket: http.client calls only this method of it."""
        return io.BufferedReader(self)


def _exchange(
    connection: _Connection, target: CallbackTarget, body: bytes, headers: Mapping[str, str]
) -> WebhookResult:
    connection.limit(ANSWER_S)
    source = _Answer(connection.socket)
    answer = http.client.HTTPResponse(cast("socket.socket", source), method="POST")
    try:
        request = http.client.HTTPConnection(target.host, target.port)
        request.sock = connection.socket
        fixed = {"Host": target.host_header, "Content-Type": "application/json", "Connection": "close"}
        request.request("POST", target.path, body, {**fixed, "User-Agent": "Penstock", **headers})
        answer.begin()
        # http.client takes a head that breaks off for a whole one.
        if source.has_ended:
            return WebhookResult.TIMED_OUT if connection.was_cut else WebhookResult.UNREACHABLE
        _drain(answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _result_of(error, connection, WebhookResult.UNREACHABLE)
    finally:
        answer.close()
    return WebhookResult.DELIVERED if 200 <= answer.status < 300 else WebhookResult.BAD_STATUS


def _result_of(error: Exception, connection: _Connection, otherwise: WebhookResult) -> WebhookResult:
    """Return `timed_out` if a limit ended the exchange: the timer's, or that of a single read, which may be first."""
    return WebhookResult.TIMED_OUT if connection.was_cut or isinstance(error, TimeoutError) else otherwise


def _drain(answer: http.client.HTTPResponse) -> None:
    """Read the beginning of the answer's body: a receiver that cannot send it may report an error of its own."""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        answer.read(_MAX_BODY)
