"""Finds the records of API keys and of admin keys that another program has spoiled."""

from collections.abc import Callable, Iterator
from typing import Any

import redis

from shared.accounts import admin_keys, key_record
from shared.errors import ConfigError
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults


def find_unreadable_keys(client: redis.Redis) -> tuple[str, ...]:
    """Return a sentence about each record that cannot be read, so that its key is not accepted."""
    return (
        *_unreadable(client, keys.keys(), key_record.parse),
        *_unreadable(client, keys.admin_keys(), admin_keys.parse),
    )


def _unreadable(client: redis.Redis, key: str, parse: Callable[[str, str], object]) -> Iterator[str]:
    with store_faults(client):
        kind = text(client.type(key))
        stored: Any = client.hgetall(key) if kind == "hash" else {}
    if kind not in {"hash", "none"}:
        yield f"{key} is a {kind} and not a hash, so none of its keys is accepted"
    for digest, raw in stored.items():
        try:
            parse(text(digest), text(raw))
        except ConfigError as error:
            yield str(error)
