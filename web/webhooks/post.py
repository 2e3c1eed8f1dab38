"""Sends one signed webhook: resolves the host once, checks its addresses, and connects to a checked address."""

import base64
import contextlib
import hashlib
import hmac
import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from gevent import monkey
from gevent.threadpool import ThreadPool

from shared.hosts import is_address
from shared.store.webhook_results import WebhookResult
from web.http.bounded_connection import BoundedConnection
from web.http.callback_url import CallbackTarget, is_public

#: So many names are resolved at once in a process. gevent resolves the names of all other connections, such as those to
#: the store, in the ten threads of its hub. A thread waits for as long as the system's resolver does.
MAX_THREADS = 16


def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host, without duplicates; none if it has none, or if no name server has answered."""
    if monkey.is_module_patched("socket"):
        found = _pool().apply(_look_up_here, (host, port))
    else:
        # Without gevent's patches, the caller is a native thread itself.
        found = _look_up_here(host, port)
    return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))


def _look_up_here(host: str, port: int) -> list[Any]:
    # As bytes, because the codec for IDNA names, which would be used for a text, imports modules in this thread.
    name, getaddrinfo = host.encode("ascii"), monkey.get_original("socket", "getaddrinfo")
    try:
        found: list[Any] = getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        # gevent would print the traceback of an exception that leaves the thread.
        return []
    return found


@cache  # one for the event loop of the process
def _pool() -> ThreadPool:
    return ThreadPool(MAX_THREADS)


#: How long a try waits for the addresses of a name, in seconds.
RESOLVE_S = 5.0
#: How many threads one tenant's names may hold. A thread is held until the system's resolver gives up, which can take
#: longer than the try.
AT_ONCE_OF_TENANT = 2

#: Returns the addresses of a host, as texts. Raises OSError.
Resolve = Callable[[str, int], Sequence[str]]


class NoThreadFree(Exception):
    """The name was not looked up, because all threads that the tenant may use are held by other names."""


class NotResolved(OSError):
    """The name has no address, or no name server has answered in time."""


class NameResolver:
    """Looks up names in threads that are left behind if they take too long: a lookup cannot be interrupted."""

    def __init__(self, resolve: Resolve = look_up) -> None:
        self._resolve = resolve
        self._lock = threading.Lock()
        #: How many threads the names of each tenant hold; guarded by the lock.
        self._held = Counter[str]()

    def addresses(self, tenant: str, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, at least one. Raises NotResolved and NoThreadFree."""
        if is_address(host):
            return [host]
        with self._lock:
            if self._held[tenant] >= AT_ONCE_OF_TENANT or self._held.total() >= MAX_THREADS:
                raise NoThreadFree
            self._held[tenant] += 1
        found: list[Sequence[str]] = []
        ended = threading.Event()

        def run() -> None:
            try:
                found.append(self._resolve(host, port))
            except (OSError, UnicodeError):
                pass
            finally:
                with self._lock:
                    self._held[tenant] -= 1
                    self._held += Counter()
                ended.set()

        threading.Thread(target=run, name="webhook-resolver", daemon=True).start()
        if not ended.wait(RESOLVE_S) or not found or not found[0]:
            raise NotResolved(f"{host} has no address")
        return found[0]


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


def _connect(target: CallbackTarget, addresses: Sequence[str]) -> BoundedConnection:
    """Return a connection to the first address that accepts one, after the TLS handshake. Raises Failed."""
    ends_s = time.monotonic() + CONNECT_S
    for address in addresses[:_MAX_ADDRESSES]:
        left_s = max(0.1, ends_s - time.monotonic())
        try:
            plain = socket.create_connection((address, target.port), timeout=left_s)
        except OSError:
            continue
        connection = BoundedConnection(plain, max(0.1, ends_s - time.monotonic()))
        if target.scheme == "https":
            _start_tls(connection, target)
        return connection
    raise Failed(WebhookResult.TIMED_OUT if time.monotonic() >= ends_s else WebhookResult.UNREACHABLE)


def _start_tls(connection: BoundedConnection, target: CallbackTarget) -> None:
    try:
        connection.start_tls(target.host)
    except OSError as error:
        with connection:
            raise Failed(_result_of(error, connection, WebhookResult.TLS_FAILED)) from None


def _exchange(
    connection: BoundedConnection, target: CallbackTarget, body: bytes, headers: Mapping[str, str]
) -> WebhookResult:
    connection.limit(ANSWER_S)
    fixed = {"Host": target.host_header, "Content-Type": "application/json", "Connection": "close"}
    named = {**fixed, "User-Agent": "Penstock", **headers}
    most = _MAX_HEAD + _MAX_BODY
    try:
        with connection.exchange("POST", target.host, target.port, target.path, named, body, most=most) as answer:
            # A receiver that cannot send the beginning of its body may report an error of its own.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                answer.read(_MAX_BODY)
            return WebhookResult.DELIVERED if 200 <= answer.status < 300 else WebhookResult.BAD_STATUS
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _result_of(error, connection, WebhookResult.UNREACHABLE)


def _result_of(error: Exception, connection: BoundedConnection, otherwise: WebhookResult) -> WebhookResult:
    return WebhookResult.TIMED_OUT if connection.took_too_long(error) else otherwise


def signed_headers(webhook_id: str, timestamp_s: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """Return the three headers of a webhook; each of the secrets signs it."""
    signed = f"{webhook_id}.{timestamp_s}.".encode() + body
    digests = (hmac.new(secret, signed, hashlib.sha256).digest() for secret in secrets)
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }
