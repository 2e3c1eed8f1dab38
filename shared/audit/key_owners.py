"""Who owns each key: every key of ours and RQ's has a TTL, an owner or a place among the permanent ones."""

from typing import Any

import redis

from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: Longest prefix first, so that `rq:workers:` is not taken for `rq:workers`.
_BY_PREFIX = sorted(keys.TABLE, key=lambda key: -len(key.prefix))


def family_of(key: str) -> keys.Key | None:
    """The row of shared/store/keys.py that a key belongs to; None for a stranger."""
    for row in _BY_PREFIX:
        if key == row.prefix if row.part == "" else key.startswith(row.prefix):
            return row
    return None


def unowned_keys(client: redis.Redis, inflight: set[str] | None = None) -> list[str]:
    """Keys below `penstock:` and `rq:` that nothing would ever remove. Raises StoreUnavailable.

    Redis removes emptied collections by itself, so a key that dies `emptied` is owned by its members.
    """
    with store_faults(client):
        found: list[bytes] = [*client.scan_iter("penstock:*", count=1_000), *client.scan_iter("rq:*", count=1_000)]
        pipe = client.pipeline(transaction=False)
        for key in found:
            pipe.pttl(key)
        ttls: list[Any] = pipe.execute()
        live = inflight if inflight is not None else {text(raw) for raw in client.zrange(keys.inflight(), 0, -1)}
        eternal = sorted(text(key) for key, ttl in zip(found, ttls, strict=True) if ttl == -1)
        return [key for key in eternal if not _owned(client, key, live)]


def _owned(client: redis.Redis, key: str, inflight: set[str]) -> bool:
    row = family_of(key)
    if row is None:
        return False
    if row.name == "tenant":
        return client.hexists(key, "policy") is True
    if row.dies == "with the job":
        return key.removeprefix(row.prefix) in inflight
    return row.dies in {"permanent", "emptied"}
