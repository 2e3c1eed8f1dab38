"""Reads what is left to do in a cell, for commands that move tenants out of it."""

from dataclasses import dataclass
from typing import Any

import redis

from shared.accounts.api_keys import ApiKeys
from shared.store import keys
from shared.store.batches.batches import ENDED
from shared.store.decode import integer, text
from shared.store.redis_errors import store_faults


@dataclass(frozen=True)
class CellLoad:
    """Jobs that have not ended, batches that have not ended, webhooks that are not told, and workers that are live."""

    jobs: int
    batches: int
    webhooks: int = 0
    workers: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.batches or self.webhooks)

    def __str__(self) -> str:
        counts = ((self.jobs, "job"), (self.batches, "batch"), (self.webhooks, "webhook"))
        named = [f"{n} {word}{'' if n == 1 else 'es' if word == 'batch' else 's'}" for n, word in counts if n]
        return " and ".join(named) or "no job"


def cell_load(client: redis.Redis) -> CellLoad:
    """Return the load of a whole cell. Raises StoreUnavailable."""
    with store_faults(client), client.pipeline(transaction=False) as pipe:
        for key in (keys.inflight(), keys.open_batches(), keys.webhooks(), keys.live()):
            pipe.zcard(key)
        return CellLoad(*pipe.execute())


def tenant_load(client: redis.Redis, tenant: str) -> CellLoad:
    """Return the jobs and batches of one tenant in a cell, and the cell's workers. Raises StoreUnavailable."""
    with store_faults(client), client.pipeline(transaction=False) as pipe:
        pipe.hmget(keys.tenant(tenant), ["waiting", "running"])
        pipe.smembers(keys.open_batches_of(tenant))
        pipe.zcard(keys.live())
        counts, batches, workers = pipe.execute()
        for raw in batches:
            pipe.hget(keys.batch_record(text(raw)), "status")
        statuses: list[Any] = pipe.execute()
    jobs = sum(max(0, integer(None if count is None else text(count))) for count in counts)
    open_batches = sum(status is not None and text(status) not in ENDED for status in statuses)
    return CellLoad(jobs, open_batches, workers=workers)


def knows_tenant(client: redis.Redis, tenant: str) -> bool:
    """Return whether a cell has a policy, a key or a job of the tenant. Raises StoreUnavailable."""
    with store_faults(client):
        known = client.exists(keys.tenant(tenant))
    return bool(known or ApiKeys(client).ls(tenant)[1])
