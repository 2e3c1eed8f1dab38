"""The page /metrics/fleet, rendered at most once a second for each of its two formats."""

import re
from typing import Any, Literal

import redis
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
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
from web.http.process_metrics import ProcessMetrics
from web.runtime.fleet.metrics import fleet_registry, in_turns
from web.runtime.fleet.shares import TenantShares
from web.runtime.shared_answer import SharedAnswer

#: How old the budgets may be, in seconds, about the time between two scrapes: they are in the records of all tenants.
_BUDGETS_AGE_S = 15.0

Format = Literal["text", "openmetrics"]

CONTENT_TYPES: dict[Format, str] = {
    "text": CONTENT_TYPE_PLAIN_0_0_4,
    "openmetrics": openmetrics.CONTENT_TYPE_LATEST,
}


class FleetPage:
    """Reads and renders the metrics of the whole system. Scrapes of the same second share one page."""

    def __init__(self, store: Store, metrics: ProcessMetrics, clock: Clock) -> None:
        self._store, self._metrics = store, metrics
        budgets, self._webhooks = Budgets(store.client), Webhooks(store.client)
        self._shares = TenantShares(Groups(store.client))
        self._budgets = SharedAnswer(budgets.read_all, clock)
        self._registry = SharedAnswer(self._read, clock)
        self._pages: dict[Format, SharedAnswer[bytes]] = {
            "text": SharedAnswer(lambda: generate_latest(self._registry.get()), clock),
            "openmetrics": SharedAnswer(self._render_openmetrics, clock),
        }

    def render(self, page_format: Format) -> bytes:
        """Return the page; its values are at most two seconds old, budgets 17. Raises StoreUnavailable."""
        return self._pages[page_format].get()

    def _render_openmetrics(self) -> bytes:
        page: bytes = openmetrics.generate_latest(self._registry.get())  # type: ignore[no-untyped-call]  # has no types
        return page

    def _read(self) -> CollectorRegistry:
        with self._metrics.time_script("snapshot"):
            snapshot = self._store.snapshot(tenants=MAX_TENANTS, stats=True)
        shares = self._shares.ratios(snapshot)
        webhooks, exemplars = self._webhooks.pending(), read_exemplars(self._store.client)
        return fleet_registry(snapshot, self._budgets.get(_BUDGETS_AGE_S), webhooks, shares, exemplars)


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
