"""The state of the whole system at one moment, and what one tenant has waiting and running in it."""

from dataclasses import dataclass
from typing import Any

from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.replies import Snapshot
from web.runtime.context import DoorContext


@dataclass(frozen=True)
class TenantCounts:
    """What one tenant has in the system."""

    waiting: int
    waiting_tokens: int
    running: int


def read_snapshot(context: DoorContext, *, tenants: int = 1) -> Snapshot:
    """Counters, workers, and the most recently seen tenants, at most so many. Raises StoreUnavailable."""
    with context.metrics.time_script("snapshot"):
        return context.store.snapshot(tenants=tenants)


def count_tenant(context: DoorContext, tenant: str) -> TenantCounts:
    """The tenant's jobs and tokens that wait, and its jobs that run. Raises StoreUnavailable."""
    client = context.store.client
    with store_faults(client):
        counted: Any = client.hmget(keys.tenant(tenant), "waiting", "waiting_tokens", "running")
    return TenantCounts(*(int(value or 0) for value in counted))
