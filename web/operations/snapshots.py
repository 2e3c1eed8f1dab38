"""Read how the whole system is doing, or how many jobs one tenant has."""

from dataclasses import dataclass
from typing import Any

from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.replies import Overview
from web.runtime.context import DoorContext


@dataclass(frozen=True)
class TenantCounts:
    """How many jobs of one tenant are queued (`waiting`) and running, and how many tokens the queued jobs have."""

    waiting: int
    waiting_tokens: int
    running: int


@dataclass(frozen=True)
class Totals:
    """The number of inflight jobs, of jobs that were claimed at least once, and of refused offers."""

    inflight: int
    executed: int
    yielded: int


def read_overview(context: DoorContext) -> Overview:
    """Return how many jobs are inflight, the bounds and the number of live workers. Raises StoreUnavailable."""
    with context.metrics.time_script("overview"):
        return context.store.overview()


def read_totals(context: DoorContext) -> Totals:
    """Return the three metrics that the gate's `metrics` frame answers. Raises StoreUnavailable."""
    return Totals(read_overview(context).inflight, *context.store.counters("executed", "yielded"))


def count_tenant(context: DoorContext, tenant: str) -> TenantCounts:
    """Read how many queued and running jobs the tenant has. Raises StoreUnavailable."""
    client = context.store.client
    with store_faults(client):
        counted: Any = client.hmget(keys.tenant(tenant), "waiting", "waiting_tokens", "running")
    return TenantCounts(*(int(value or 0) for value in counted))
