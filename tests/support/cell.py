"""The store fixture's cell: its key prefix, if `make test-prefix` gives it one, and emptying it."""

import os

import redis

from shared.store.clients.key_prefix import prefix_of
from shared.store.connection import open_client

#: The key prefix of the store fixture's cell.
KEY_PREFIX = os.environ.get("TEST_KEY_PREFIX", "")


def empty(client: redis.Redis) -> None:
    """Delete all keys of the client's cell: without a prefix, all keys of the store."""
    if not prefix_of(client):
        client.flushall()
    elif found := list(client.scan_iter(count=10_000)):
        client.unlink(*found)


def foreign_keys(store_url: str) -> list[bytes]:
    """Return the keys of a store that do not begin with KEY_PREFIX."""
    with open_client(store_url, name="penstock-test") as whole:
        return [key for key in whole.scan_iter(count=10_000) if not key.startswith(KEY_PREFIX.encode())]
