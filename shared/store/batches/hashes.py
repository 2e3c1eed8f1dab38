"""Reads of hashes and indexes that another program may have spoiled, which then count as missing."""

from typing import Any

import redis

from shared.store.decode import text
from shared.store.redis_errors import store_faults


def read_hash(client: redis.Redis, key: str) -> dict[str, str]:
    """Return the fields of a hash; none if the key is missing or holds something else. Raises StoreUnavailable."""
    with store_faults(client):
        try:
            stored: Any = client.hgetall(key)
        except redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            return {}
    return {text(name): text(value) for name, value in stored.items()}


def read_page(
    client: redis.Redis, key: str, *, limit: int, after: str | None, oldest_first: bool
) -> tuple[list[str], bool]:
    """Return up to `limit` members of an index by time, behind the member `after`, and whether there are more.

    Raises StoreUnavailable. If `after` is no member, the page is empty.
    """
    with store_faults(client):
        try:
            read, rank_of = (client.zrange, client.zrank) if oldest_first else (client.zrevrange, client.zrevrank)
            rank: Any = -1 if after is None else rank_of(key, after)
            if rank is None:
                return [], False
            found: Any = read(key, rank + 1, rank + 1 + limit)
        except redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            return [], False
    return [text(raw) for raw in found[:limit]], len(found) > limit
