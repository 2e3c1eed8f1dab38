"""Reads what the state machine compares with its model from the store, in one round trip instead of about thirty."""

from collections.abc import Iterable
from typing import Any

import redis

from shared.store import keys


def read_compared(client: redis.Redis, tenants: Iterable[str], slugs: Iterable[str]) -> list[Any]:
    """Return the answers in the order in which `store_and_model_agree` (tests/support/machine.py) compares them."""
    slugs, pipe = list(slugs), client.pipeline(transaction=False)
    pipe.zcard(keys.inflight())
    pipe.hget(keys.config(), "live_places")
    for tenant in tenants:
        for slug in slugs:
            pipe.zrange(keys.order(f"{tenant}.{slug}"), 0, -1)
            pipe.hget(keys.tenant(tenant), keys.service_field(slug))
        pipe.hget(keys.stats(), f"degraded|{tenant}|max_tokens")
        pipe.hgetall(keys.kept(tenant))
    for slug in slugs:
        pipe.hget(keys.books(slug), "tier")
    return pipe.execute()
