"""The cache of passages: what was found for a tenant's queries, so that the same query needs no search for a while."""

from dataclasses import dataclass
from typing import Any

import redis

from shared.store import scripts
from shared.store.decode import text
from shared.store.redis_errors import store_faults


@dataclass(frozen=True)
class CachedPassages:
    """The content that was stored for a query, and how long ago, in ms."""

    content: str
    age_ms: int


@dataclass(frozen=True)
class Looked:
    """The answer of a look-up: the entry or None, and the time in ms, which `keep` takes after a search."""

    now_ms: int
    found: CachedPassages | None


class PassageCache:
    """The passages of all tenants' queries. Every method raises StoreUnavailable if the store does not answer.

    Entries are kept for `ttl_s` seconds, and those of a tenant take at most `max_bytes` bytes.
    """

    def __init__(self, client: redis.Redis, *, ttl_s: int, max_bytes: int) -> None:
        self._client, self._ttl_s, self._max_bytes = client, ttl_s, max_bytes

    def find(self, tenant: str, digest: str) -> Looked:
        """Return the content that was stored for a query, which names the version of its collection."""
        word, rest = self._call("passages_find", tenant=tenant, digest=digest)
        found = CachedPassages(text(rest[2]), int(rest[1])) if word == "found" else None
        return Looked(int(rest[0]), found)

    def keep(self, tenant: str, digest: str, content: str, *, since_ms: int) -> bool:
        """Store what was found for a query; return whether there was room for it.

        `since_ms` is the time of the look-up before the search. Nothing is stored if the tenant's passages were dropped
        after it, because the search may have found what was deleted.
        """
        given: dict[str, scripts.Value] = {"tenant": tenant, "digest": digest, "content": content, "since_ms": since_ms}
        word, _ = self._call("passages_keep", **given, ttl_s=self._ttl_s, max_bytes=self._max_bytes)
        return word == "kept"

    def drop(self, tenant: str) -> None:
        """Delete the passages of a tenant, some of whose documents were deleted."""
        drop_passages(self._client, tenant)

    def _call(self, script: str, **given: scripts.Value) -> tuple[str, list[Any]]:
        with store_faults(self._client):
            return scripts.load(script).call(self._client, **given)


def drop_passages(client: redis.Redis, tenant: str) -> None:
    """Delete the passages that were stored for a tenant's queries. Raises StoreUnavailable."""
    with store_faults(client):
        scripts.load("passages_drop").call(client, tenant=tenant)
