"""Checks invariant 13: each webhook to be sent is due at some time, and its tenant has a turn by then."""

from typing import Any

import redis

from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import raise_if_unavailable, store_faults


def check_webhooks(client: redis.Redis, *, limit: int) -> list[str]:
    """Return a sentence about each of the `limit` oldest webhooks that no door would ever send.

    A live system can change between the reads, so only what several checks find counts. Raises StoreUnavailable.
    """
    (oldest,) = _pipelined(client, [("ZRANGE", keys.webhooks(), "0", str(limit - 1))])
    if isinstance(oldest, Exception):
        return [f"{keys.webhooks()} is no sorted set"]
    ids = [text(raw) for raw in oldest]
    owners = _pipelined(client, [("HGET", keys.webhook(webhook_id), "tenant") for webhook_id in ids])
    owned = [(webhook_id, text(raw)) for webhook_id, raw in zip(ids, owners, strict=True) if isinstance(raw, bytes)]
    found = [f"webhook {webhook_id} has no record" for webhook_id in ids if webhook_id not in dict(owned)]
    due = _pipelined(client, [("ZSCORE", keys.webhook_due(tenant), webhook_id) for webhook_id, tenant in owned])
    for (webhook_id, tenant), score in zip(owned, due, strict=True):
        if not isinstance(score, bytes | float):
            found.append(f"webhook {webhook_id} of {tenant} is due at no time")
    tenants = sorted({tenant for _, tenant in owned})
    turns = _pipelined(client, [("ZSCORE", keys.webhook_turns(), tenant) for tenant in tenants])
    for tenant, score in zip(tenants, turns, strict=True):
        if not isinstance(score, bytes | float):
            found.append(f"{tenant} has webhooks, but no turn")
    return found


def _pipelined(client: redis.Redis, commands: list[tuple[str, ...]]) -> list[Any]:
    """Return the answers; the answer to a command on a key of the wrong type is an exception."""
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    with store_faults(client):
        answers: list[Any] = pipe.execute(raise_on_error=False)
    return [raise_if_unavailable(client, answer) if isinstance(answer, Exception) else answer for answer in answers]
