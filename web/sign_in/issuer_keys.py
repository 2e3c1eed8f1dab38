"""The keys with which an issuer signs its tokens: fetched within bounds when they are needed, and kept."""

import http.client
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from shared.clock import Clock
from shared.log import get_logger
from shared.settings.sign_in_roles import url_problem
from web.http.bounded_connection import BoundedConnection

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
    with BoundedConnection(plain, EXCHANGE_S) as connection:
        try:
            if is_tls:
                connection.start_tls(host)
            named = {"Accept": "application/json", "Connection": "close"}
            with connection.exchange("GET", host, port, path, named, most=MAX_BYTES) as answer:
                return _object(answer)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            reason = f"it took longer than {EXCHANGE_S:g} s" if connection.took_too_long(error) else str(error)[:200]
            raise FetchFailed(f"gave no usable answer: {reason}") from None


def _object(answer: http.client.HTTPResponse) -> dict[str, Any]:
    if answer.status != 200:
        raise ValueError(f"its status is {answer.status}, not 200")
    found = json.loads(answer.read())
    if isinstance(found, dict):
        return found
    raise ValueError("it is not a JSON object")


log = get_logger()

#: The least time between the beginnings of two fetches, in seconds, whatever tokens clients send. A key that the issuer
#: has just begun to use is accepted at the latest after this time.
PAUSE_S = 10.0
#: Keys that are older than this are fetched again, in seconds, while the old ones are still used.
_REFRESH_S = 3_600.0
#: For how long keys are used while the issuer gives no others, in seconds. A longer outage than a day may hide that a
#: key was withdrawn.
_MAX_AGE_S = 86_400.0
#: How long a request waits for a fetch, in seconds.
_WAIT_S = 5.0
_DISCOVERY_PATH = "/.well-known/openid-configuration"
#: The most keys that are taken from a set. Issuers publish two to ten.
_MAX_KEYS = 100


class KeysUnavailable(Exception):
    """No keys of the issuer are known; the message says why. It may be tried again after PAUSE_S."""


#: One key as the issuer publishes it (RFC 7517).
Jwk = dict[str, Any]


@dataclass(frozen=True)
class _KeySet:
    keys: tuple[Jwk, ...]
    fetched_s: float

    def find(self, kid: str | None) -> Jwk | None:
        """Return the key with this id; for a token without an id, the only key."""
        if kid is None:
            return self.keys[0] if len(self.keys) == 1 else None
        return next((key for key in self.keys if key.get("kid") == kid), None)


class IssuerKeys:
    """The keys of one issuer. They are fetched on a thread of their own, so that no request waits longer than 5 s."""

    def __init__(self, issuer: str, clock: Clock, fetch: Callable[[str], dict[str, Any]] = fetch_object) -> None:
        """`fetch` returns the JSON object at a URL, or raises FetchFailed."""
        self._issuer, self._clock, self._fetch = issuer, clock, fetch
        self._lock = threading.Lock()
        #: These four are changed only while the lock is held.
        self._known: _KeySet | None = None
        self._problem = "they were not fetched yet"
        self._began_s = float("-inf")
        self._running: threading.Event | None = None

    def find(self, kid: str | None) -> Jwk | None:
        """Return the key with this id, or None if the issuer has none.

        A key that is not known may be new, so the keys are fetched again, unless that was begun less than PAUSE_S ago.
        Raises KeysUnavailable if no keys are known.
        """
        now_s = self._clock.monotonic()
        known = self._usable(now_s)
        key = known.find(kid) if known is not None else None
        if known is not None and key is not None:
            if now_s - known.fetched_s > _REFRESH_S:
                self._begin_fetch(now_s)
            return key
        fetch = self._begin_fetch(now_s)
        if fetch is not None:
            fetch.wait(_WAIT_S)
        known = self._usable(now_s)
        if known is None:
            raise KeysUnavailable(f"the keys of the issuer {self._issuer!r} are not known: {self._problem}")
        return known.find(kid)

    def _usable(self, now_s: float) -> _KeySet | None:
        known = self._known
        return known if known is not None and now_s - known.fetched_s <= _MAX_AGE_S else None

    def _begin_fetch(self, now_s: float) -> threading.Event | None:
        """Return the event at which the running fetch ends; begin one if none runs. Return None if it is too early."""
        with self._lock:
            if self._running is not None:
                return self._running
            if now_s - self._began_s < PAUSE_S:
                return None
            self._began_s = now_s
            ended = self._running = threading.Event()
        threading.Thread(target=self._run, args=[ended], name="issuer-keys", daemon=True).start()
        return ended

    def _run(self, ended: threading.Event) -> None:
        problem = ""
        keys: tuple[Jwk, ...] = ()
        try:
            keys = self._read_keys()
        except FetchFailed as error:
            problem = str(error)
            log.warning("issuer.unavailable", issuer=self._issuer, problem=problem)
        except Exception:
            problem = "an error in Penstock, which its log describes"
            log.exception("issuer.fault")
        with self._lock:
            if problem:
                self._problem = problem
            else:
                self._known = _KeySet(keys, self._clock.monotonic())
            self._running = None
        ended.set()

    def _read_keys(self) -> tuple[Jwk, ...]:
        """Return the keys for signatures that the issuer publishes. Raises FetchFailed."""
        place = self._issuer.rstrip("/") + _DISCOVERY_PATH
        said = self._fetched(place)
        if said.get("issuer") != self._issuer:
            raise FetchFailed(f"{place} names the issuer {str(said.get('issuer'))[:200]!r}, not {self._issuer!r}")
        key_place = said.get("jwks_uri")
        if not isinstance(key_place, str):
            raise FetchFailed(f"{place} contains no jwks_uri")
        listed = self._fetched(key_place).get("keys")
        if not isinstance(listed, list):
            raise FetchFailed(f"{key_place[:200]} contains no list of keys")
        keys = [key for key in listed[:_MAX_KEYS] if isinstance(key, dict) and key.get("use", "sig") == "sig"]
        return tuple(keys)

    def _fetched(self, url: str) -> dict[str, Any]:
        try:
            return self._fetch(url)
        except FetchFailed as error:
            raise FetchFailed(f"{url[:200]} {error}") from None
