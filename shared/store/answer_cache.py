"""The semantic cache in the store: a tenant's answers, and the vectors of the prompts that they belong to."""

from dataclasses import dataclass
from typing import Any

import redis

from shared.store import scripts
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: How many vectors one call of the store returns, which is a loop of a script.
LISTED = 64


@dataclass(frozen=True)
class KeptAnswer:
    """The content that was stored, and how long ago, in ms."""

    content: str
    age_ms: int


@dataclass(frozen=True)
class KeptVector:
    """The vector of a prompt whose answer is stored.

    `kept_us` is the time at which it was stored, in microseconds of the store's clock; no two vectors have the same.
    """

    digest: str
    kept_us: int
    scope: bytes
    vector: bytes


class AnswerCache:
    """The cached answers of all tenants. Every method raises StoreUnavailable if the store does not answer.

    Entries are kept for `ttl_s` seconds, and a tenant has at most `max_entries` of them, which take at most `max_bytes`
    bytes. A vector is stored behind its scope, which has `scope_bytes` bytes.
    """

    def __init__(self, client: redis.Redis, *, ttl_s: int, max_entries: int, max_bytes: int, scope_bytes: int) -> None:
        self._client, self._ttl_s = client, ttl_s
        self._max_entries, self._max_bytes, self._scope_bytes = max_entries, max_bytes, scope_bytes

    def read(self, tenant: str, digest: str) -> KeptAnswer | None:
        word, rest = self._call("answers_read", tenant=tenant, digest=digest)
        return KeptAnswer(text(rest[1]), int(rest[0])) if word == "found" else None

    def vectors_after(self, tenant: str, after_us: int) -> list[KeptVector]:
        """Return the first of the vectors that were stored after a time, at most LISTED of them."""
        _, (places, vectors) = self._call("answers_list", tenant=tenant, after_us=after_us, limit=LISTED)
        cut = self._scope_bytes
        return [
            KeptVector(text(digest), int(float(kept_us)), bytes(stored[:cut]), bytes(stored[cut:]))
            for digest, kept_us, stored in zip(places[::2], places[1::2], vectors, strict=True)
        ]

    def keep(self, tenant: str, digest: str, content: str, scope: bytes, vector: bytes) -> bool:
        """Store an answer; return whether there was room for it, and the tenant's policy allows it."""
        given: dict[str, scripts.Value] = {"tenant": tenant, "digest": digest, "content": content}
        bounds = {"ttl_s": self._ttl_s, "max_entries": self._max_entries, "max_bytes": self._max_bytes}
        word, _ = self._call("answers_keep", **given, vector=scope + vector, **bounds)
        return word == "kept"

    def _call(self, script: str, **given: scripts.Value) -> tuple[str, list[Any]]:
        with store_faults(self._client):
            return scripts.load(script).call(self._client, **given)


def drop_answers(client: redis.Redis, tenant: str) -> None:
    """Delete the cached answers of a tenant. Raises StoreUnavailable."""
    with store_faults(client):
        scripts.load("answers_drop").call(client, tenant=tenant)
