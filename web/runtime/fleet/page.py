"""The page /metrics/fleet, rendered at most once a second for each of its two formats."""

import re
from functools import partial
from typing import Any

import redis
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar

from shared.accounts.budgets import Budgets
from shared.accounts.groups import Groups
from shared.clock import Clock
from shared.metrics.spec import MAX_TENANTS
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from shared.store.store import Store
from shared.store.webhooks import Webhooks
from shared.views.shares import Shares
from web.http.process_metrics import ProcessMetrics
from web.runtime.fleet.metrics import Format, ReadFamilies, encoded, fleet_families, in_turns
from web.runtime.shared_answer import SharedAnswer

#: How old the budgets may be, in seconds, about the time between two scrapes: they are in the records of all tenants.
_BUDGETS_AGE_S = 15.0

CONTENT_TYPES: dict[Format, str] = {
    "text": CONTENT_TYPE_PLAIN_0_0_4,
    "openmetrics": openmetrics.CONTENT_TYPE_LATEST,
}


class FleetPage:
    """Reads and renders the metrics of the whole system. Scrapes of the same second share one page."""

    def __init__(self, store: Store, metrics: ProcessMetrics, clock: Clock) -> None:
        self._store, self._metrics = store, metrics
        budgets, self._webhooks = Budgets(store.client), Webhooks(store.client)
        self._shares, self._groups = Shares(), Groups(store.client)
        self._budgets = SharedAnswer(budgets.read_all, clock)
        self._families = SharedAnswer(self._read, clock)
        self._pages: dict[Format, SharedAnswer[bytes]] = {
            each: SharedAnswer(partial(self._encode, each), clock) for each in CONTENT_TYPES
        }

    def render(self, page_format: Format) -> bytes:
        """Return the page; its values are at most two seconds old, budgets 17. Raises StoreUnavailable."""
        return self._pages[page_format].get()

    def _encode(self, page_format: Format) -> bytes:
        return encoded(self._families.get(), page_format)

    def _read(self) -> ReadFamilies:
        with self._metrics.time_script("snapshot"):
            snapshot = self._store.snapshot(tenants=MAX_TENANTS, stats=True)
        shares = self._shares.add(snapshot, self._groups.weights(snapshot.groups)).ratios()
        webhooks, exemplars = self._webhooks.pending(), read_exemplars(self._store.client)
        budgets = self._budgets.get(_BUDGETS_AGE_S)
        return ReadFamilies(fleet_families(snapshot, budgets, webhooks, shares, exemplars))


#: The text that observe in shared/lua/lib/ledgers/stats.lua writes: the job's id, its time in µs, and when it was
#: observed, in ms.
_STORED = re.compile(r"([\w-]{1,64}) (\d{1,15}) (\d{1,15})\Z", re.ASCII)


def read_exemplars(client: redis.Redis) -> dict[str, Exemplar]:
    """Return the exemplars by the names of their buckets. Raises StoreUnavailable.

    Values that another program has put in their place are left out.
    """
    try:
        with store_faults(client):
            stored: Any = client.hgetall(keys.exemplars())
    except redis.ResponseError:
        return {}
    found = {}
    for bucket, job in in_turns(stored.items()):
        match = _STORED.match(text(job))
        if match is not None:
            job_id, time_us, at_ms = match.groups()
            found[text(bucket)] = Exemplar({"job_id": job_id}, int(time_us) / 1_000_000, int(at_ms) / 1000)
    return found
