"""The keys with which an issuer signs its tokens: fetched when they are needed, kept, and seldom fetched again."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.clock import Clock
from shared.log import get_logger
from web.sign_in.fetching import FetchFailed, fetch_object

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
