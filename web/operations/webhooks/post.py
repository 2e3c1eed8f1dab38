"""Sends one webhook: resolves the host once, checks its addresses, and connects to a checked address."""

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from shared.store.webhooks.results import WebhookResult
from web.http.callbacks.addresses import is_public
from web.http.callbacks.url import CallbackTarget

#: The time limits of one try, in seconds: to resolve the name, to connect (with the TLS handshake), and for the rest.
RESOLVE_S, CONNECT_S, ANSWER_S = 5.0, 5.0, 10.0
#: So many names are resolved at once in a process. gevent resolves in ten threads, which the process needs for others.
_RESOLVERS = threading.BoundedSemaphore(6)
#: So many of a host's addresses are tried.
_MAX_ADDRESSES = 3
#: How much of an answer is read, in bytes: its head and the beginning of its body.
_MAX_HEAD, _MAX_BODY = 32_768, 4_096

#: Returns the addresses of a host, as texts. Raises OSError.
Resolve = Callable[[str, int], Sequence[str]]


class Failed(Exception):
    """The try has failed before the receiver answered."""

    def __init__(self, result: WebhookResult) -> None:
        super().__init__(result.value)
        self.result = result


def post(
    target: CallbackTarget, body: bytes, headers: Mapping[str, str], *, is_listed: bool, resolve: Resolve | None = None
) -> WebhookResult:
    """Send a webhook and return how that ended. `is_listed` allows addresses that are not public."""
    try:
        addresses = _resolve_in_time(target, resolve or _lookup)
        # One address that is not public is enough to refuse: the owner of the name chooses which of them come first.
        if not is_listed and not all(map(is_public, addresses)):
            return WebhookResult.REFUSED_ADDRESS
        with _connect(target, addresses) as connection:
            return _exchange(connection, target, body, headers)
    except Failed as failed:
        return failed.result


def _lookup(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))


def _resolve_in_time(target: CallbackTarget, resolve: Resolve) -> Sequence[str]:
    """Return the host's addresses. A resolver cannot be interrupted, so it works in a thread that is left behind."""
    found: list[Sequence[str]] = []
    ended = threading.Event()

    def run() -> None:
        try:
            found.append(resolve(target.host, target.port))
        except (OSError, UnicodeError):
            pass
        finally:
            _RESOLVERS.release()
            ended.set()

    if not _RESOLVERS.acquire(timeout=RESOLVE_S):
        raise Failed(WebhookResult.NOT_RESOLVED)
    threading.Thread(target=run, name="webhook-resolver", daemon=True).start()
    if not ended.wait(RESOLVE_S) or not found or not found[0]:
        raise Failed(WebhookResult.NOT_RESOLVED)
    return found[0]


class _Deadline:
    """Shuts a connection down at a time, whatever it waits for then: a limit for each read could be prolonged."""

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        # The duplicate stays valid when TLS takes over the socket.
        self._guard, self.has_passed = connection.dup(), False
        self._timer = threading.Timer(limit_s, self._cut)
        self._timer.daemon = True
        self._timer.start()

    def _cut(self) -> None:
        self.has_passed = True
        try:
            self._guard.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The receiver has closed the connection.
            return

    def end(self) -> None:
        self._timer.cancel()
        self._guard.close()


def _connect(target: CallbackTarget, addresses: Sequence[str]) -> socket.socket:
    """Return a connection to the first address that accepts one, after the TLS handshake."""
    ends_s = time.monotonic() + CONNECT_S
    plain = None
    for address in addresses[:_MAX_ADDRESSES]:
        try:
            plain = socket.create_connection((address, target.port), timeout=max(0.1, ends_s - time.monotonic()))
            break
        except OSError:
            continue
    if plain is None:
        raise Failed(WebhookResult.TIMED_OUT if time.monotonic() >= ends_s else WebhookResult.UNREACHABLE)
    if target.scheme == "http":
        return plain
    deadline = _Deadline(plain, max(0.1, ends_s - time.monotonic()))
    try:
        return _tls().wrap_socket(plain, server_hostname=target.host)
    except OSError:
        plain.close()
        raise Failed(WebhookResult.TIMED_OUT if deadline.has_passed else WebhookResult.TLS_FAILED) from None
    finally:
        deadline.end()


@cache  # reading the certificates of the system takes tens of ms
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Answer(io.RawIOBase):
    """What a receiver sends, up to a number of bytes, after which the answer seems to end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._left = connection, _MAX_HEAD + _MAX_BODY

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._connection.recv_into(buffer, min(len(buffer), self._left)) if self._left else 0
        self._left -= read
        return read

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Stand in for a socket, of which http.client uses this method only."""
        return io.BufferedReader(self)


def _exchange(
    connection: socket.socket, target: CallbackTarget, body: bytes, headers: Mapping[str, str]
) -> WebhookResult:
    deadline = _Deadline(connection, ANSWER_S)
    try:
        connection.settimeout(ANSWER_S)
        request = http.client.HTTPConnection(target.host, target.port)
        request.sock = connection
        fixed = {"Host": target.host_header, "Content-Type": "application/json", "Connection": "close"}
        request.request("POST", target.path, body, {**fixed, "User-Agent": "Penstock", **headers})
        answer = http.client.HTTPResponse(cast("socket.socket", _Answer(connection)), method="POST")
        answer.begin()
        # A receiver whose answer is not read may fail although it has handled the webhook.
        answer.read(_MAX_BODY)
    except (OSError, http.client.HTTPException, ValueError):
        return WebhookResult.TIMED_OUT if deadline.has_passed else WebhookResult.UNREACHABLE
    finally:
        deadline.end()
    return WebhookResult.DELIVERED if 200 <= answer.status < 300 else WebhookResult.BAD_STATUS
