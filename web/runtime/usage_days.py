"""Keeps the usage that this process has read, so that clients who ask often cost the store little.

To find one tenant's series, the store examines all series of a day, up to 10,000. The usage of a day that has passed
does not change, so it is read once. That of the current day is read at most once a second for each tenant.
"""

import threading
from datetime import date
from functools import lru_cache

import redis

from shared.accounts.usage import UsageRecords, UsageRow
from shared.clock import Clock
from web.runtime.shared_answer import MAX_AGE_S

#: The most answers that are kept, each of one tenant and one day. The one that was used least recently is dropped.
_MAX_KEPT = 2_048


class UsageDays:
    """Reads a tenant's usage of single days. Methods raise StoreUnavailable if the store does not answer."""

    def __init__(self, client: redis.Redis, clock: Clock) -> None:
        self._usage, self._clock = UsageRecords(client), clock
        #: Held while the store is asked, so that one process never asks for two days at once.
        self._lock = threading.Lock()
        # The period of the current day is a part of the key, so that its rows are read again.
        self._read_kept = lru_cache(_MAX_KEPT)(lambda tenant, day, _period: self._usage.read_day(day, tenant))

    def today(self) -> date:
        """Return the date of the store's time."""
        return self._usage.today()

    def read(self, tenant: str, day: date, today: date) -> list[UsageRow]:
        """Return the tenant's rows of a day. `today` is the day that the method of this name has returned."""
        with self._lock:
            return self._read_kept(tenant, day, None if day < today else int(self._clock.monotonic() / MAX_AGE_S))

    def read_all(self, day: date) -> list[UsageRow]:
        """Return the rows of all tenants of a day."""
        with self._lock:
            return self._usage.read_day(day)
