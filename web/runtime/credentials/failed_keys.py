"""Limits how many keys that are not valid an address may send; state of one process, with bounded memory."""

import threading
from collections import OrderedDict
from typing import TypeVar

from shared.clock import Clock
from shared.log import get_logger
from web.http.client_address import TrustedProxies

log = get_logger()

_Value = TypeVar("_Value")

#: The maximum number of addresses, and of rejected keys, that are remembered: about 3 MB together. The least recently
#: used entry is dropped first, so an attacker with more addresses than this gets as many failures as the addresses
#: allow, but cannot use more memory.
_MAX_ENTRIES = 10_000
#: How long a rejected key counts as known, in seconds. This is the time in which docs/http.md promises that changes of
#: keys take effect.
_REJECTED_S = 1.0
#: The minimum time between two log lines about addresses that have reached the limit, in seconds: an attacker with many
#: addresses must not fill the log.
_LOG_INTERVAL_S = 10.0


class FailedKeys:
    """Counts failed keys in one token bucket per address.

    A bucket holds one minute's worth of failures and is refilled continuously. An IPv6 address counts as its /64
    network. Trusted proxies are never limited.
    """

    def __init__(self, per_minute: int, proxies: TrustedProxies, clock: Clock) -> None:
        self._burst, self._per_s = float(per_minute), per_minute / 60
        self._proxies, self._clock = proxies, clock
        self._lock = threading.Lock()
        #: For each address, the failures that it may still make at a time (monotonic, in s). An address that is missing
        #: may make `_burst` failures. Both this and `_rejected` are changed only while `_lock` is held.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        #: When each of the latest failed keys, identified by its digest, was rejected.
        self._rejected: OrderedDict[str, float] = OrderedDict()
        self._logged_s = float("-inf")

    def record(self, address: str, digest: str = "") -> float:
        """Count one failed key from this client address, and remember the key by its digest, unless that is "".

        Returns 0 if the address is within its limit. Otherwise returns the number of seconds until it is within the
        limit again, and does not count the failure.
        """
        now_s = self._clock.monotonic()
        limited = self._proxies.limiting_key(address)
        with self._lock:
            if digest:
                _put(self._rejected, digest, now_s)
            if limited is None:
                return 0.0
            left = self._left(limited, now_s)
            if left >= 1:
                _put(self._buckets, limited, (left - 1, now_s))
                return 0.0
            log_now = now_s - self._logged_s >= _LOG_INTERVAL_S
            if log_now:
                self._logged_s = now_s
        if log_now:
            log.warning("keys.failing", address=address, per_minute=round(self._burst))
        return (1 - left) / self._per_s

    def was_just_rejected(self, address: str, digest: str) -> bool:
        """Return whether the store need not be asked about this key.

        This is true if the address has reached its limit and the same key, from any address, was unknown to the store
        less than a second ago.
        """
        now_s = self._clock.monotonic()
        limited = self._proxies.limiting_key(address)
        with self._lock:
            rejected_s = self._rejected.get(digest)
            if limited is None or rejected_s is None or now_s - rejected_s >= _REJECTED_S:
                return False
            return self._left(limited, now_s) < 1

    def _left(self, limited: str, now_s: float) -> float:
        left, at_s = self._buckets.get(limited, (self._burst, now_s))
        return min(self._burst, left + (now_s - at_s) * self._per_s)


def _put(entries: OrderedDict[str, _Value], key: str, value: _Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > _MAX_ENTRIES:
        entries.popitem(last=False)
