"""Keeps the usage that this process has read, so that clients who ask often cost the store little.

To find one tenant's series, the store examines all series of a day, up to 10,000. The usage of a day that has passed
does not change, so it is read once. That of the current day is read at most once a second for each tenant.
"""

import threading
from collections import OrderedDict
from datetime import date

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
        #: For each tenant and day: the rows, and until when they are valid, by the clock; None for ever.
        self._kept: OrderedDict[tuple[str, date], tuple[list[UsageRow], float | None]] = OrderedDict()

    def today(self) -> date:
        """Return the date of the store's time."""
        return self._usage.today()

    def read(self, tenant: str, day: date, today: date) -> list[UsageRow]:
        """Return the tenant's rows of a day. `today` is the day that the method of this name has returned."""
        with self._lock:
            kept = self._kept.get((tenant, day))
            if kept is None or (kept[1] is not None and kept[1] < self._clock.monotonic()):
                rows = self._usage.read_day(day, tenant)
                kept = self._kept[tenant, day] = rows, None if day < today else self._clock.monotonic() + MAX_AGE_S
            self._kept.move_to_end((tenant, day))
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return kept[0]

    def read_all(self, day: date) -> list[UsageRow]:
        """Return the rows of all tenants of a day."""
        with self._lock:
            return self._usage.read_day(day)
