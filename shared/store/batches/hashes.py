"""Reads of the records of files and batches, which another program may have spoiled, and of lists of them."""

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import redis

from shared import store_clock
from shared.store import keys, scripts
from shared.store.decode import pairs, text
from shared.store.redis_errors import store_faults

T = TypeVar("T")
#: How many entries of a list one request examines, at most. Entries that another program has spoiled are passed over,
#: and those whose records have expired are also removed from the list.
_MAX_EXAMINED = 4_096


def new_id(client: redis.Redis, prefix: str) -> str:
    """Return an id that begins with the store's time, so that the order of ids is that of their creation.

    Raises StoreUnavailable.
    """
    with store_faults(client), client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.mget(keys.of_time())
        now_ms = store_clock.parse(*pipe.execute()).now_ms
    return id_at(prefix, now_ms, secrets.token_hex(8))


def id_at(prefix: str, time_ms: int, rest: str) -> str:
    """Return the id of something that was created at a time, in ms since the epoch."""
    return f"{prefix}{time_ms:011x}{rest[:13]}"


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
    client: redis.Redis,
    *,
    kind: str,
    owner: str,
    limit: int,
    after: str | None,
    oldest_first: bool,
    decode: Callable[[str, dict[str, str]], T | None],
) -> tuple[list[T], bool]:
    """Return up to `limit` entries of a list behind the id `after`, and whether there may be more.

    `after` need not be in the list any more. `kind` is `files` or `batches`, and `owner` the tenant or, for the files
    of one purpose, `<tenant>.<purpose>`. `decode` returns None for an entry that is left out. Raises StoreUnavailable.
    """
    found: list[T] = []
    position, may_be_more, examined = after or "", 1, 0
    while may_be_more and len(found) <= limit and examined < _MAX_EXAMINED:
        given: scripts.Call = {"kind": kind, "owner": owner, "after": position, "oldest_first": int(oldest_first)}
        with store_faults(client):
            _, (may_be_more, last, in_part, entries) = scripts.load("list_page").call(client, **given)
        position, examined = text(last), examined + in_part
        decoded = (decode(text(entries[i]), pairs(entries[i + 1])) for i in range(0, len(entries), 2))
        found += [entry for entry in decoded if entry is not None]
    return found[:limit], len(found) > limit or bool(may_be_more)
