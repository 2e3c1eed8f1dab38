"""Read a snapshot of the whole system, or how many jobs one tenant has."""

from dataclasses import dataclass
from typing import Any

from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.replies import Snapshot
from web.runtime.context import DoorContext


@dataclass(frozen=True)
class TenantCounts:
    """How many jobs of one tenant are queued (`waiting`) and running, and how many tokens the queued jobs have."""

    waiting: int
    waiting_tokens: int
    running: int


def read_snapshot(context: DoorContext, *, tenants: int = 1) -> Snapshot:
    """Return a snapshot of the whole system, with up to `tenants` tenants: those with the most recent admissions.

    Raises StoreUnavailable.
    """
    with context.metrics.time_script("snapshot"):
        return context.store.snapshot(tenants=tenants)


def count_tenant(context: DoorContext, tenant: str) -> TenantCounts:
    """Read how many queued and running jobs the tenant has. Raises StoreUnavailable."""
    client = context.store.client
    with store_faults(client):
        counted: Any = client.hmget(keys.tenant(tenant), "waiting", "waiting_tokens", "running")
    return TenantCounts(*(int(value or 0) for value in counted))
