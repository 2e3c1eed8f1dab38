"""Finds leaked keys: those of Penstock and RQ that have no TTL, belong to no job or tenant, and are not permanent."""

from typing import Any

import redis

from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: All families of keys. Those with the longest prefix and suffix are first, so that `rq:workers:` is matched before
#: `rq:workers`.
_BY_PREFIX = sorted(keys.TABLE.values(), key=lambda family: -len(family.prefix + family.suffix))


def family_of(key: str) -> keys.Key | None:
    """Return the entry of the table in shared/store/keys.py that describes a key, or None for an unknown key."""
    for family in _BY_PREFIX:
        if key.startswith(family.prefix) and key.endswith(family.suffix) if family.part else key == family.prefix:
            return family
    return None


def unowned_keys(client: redis.Redis, inflight: set[str] | None = None) -> list[str]:
    """Return all keys starting with `penstock:` or `rq:` that nothing would ever delete. Raises StoreUnavailable.

    `inflight` is the set of inflight job ids; if None, it is read from the store. A key with `dies="emptied"` is never
    returned, because Redis itself deletes a collection when its last member is removed.
    """
    with store_faults(client):
        found: list[bytes] = [*client.scan_iter("penstock:*", count=1_000), *client.scan_iter("rq:*", count=1_000)]
        pipe = client.pipeline(transaction=False)
        for key in found:
            pipe.pttl(key)
        ttls: list[Any] = pipe.execute()
        inflight_ids = (
            inflight if inflight is not None else {text(raw) for raw in client.zrange(keys.inflight(), 0, -1)}
        )
        without_ttl = sorted(text(key) for key, ttl in zip(found, ttls, strict=True) if ttl == -1)
        families = {key: family_of(key) for key in without_ttl}
        tenants = [key for key, family in families.items() if family is keys.tenant]
        for tenant in tenants:
            pipe.hexists(tenant, "policy")
        with_policy = {tenant for tenant, has_policy in zip(tenants, pipe.execute(), strict=True) if has_policy}
        return [key for key, family in families.items() if not _is_owned(key, family, inflight_ids, with_policy)]


def _is_owned(key: str, family: keys.Key | None, inflight: set[str], with_policy: set[str]) -> bool:
    if family is None:
        return False
    if family is keys.tenant:
        return key in with_policy
    if family.dies == "with the job":
        return key.removeprefix(family.prefix) in inflight
    return family.dies in {"permanent", "emptied"}
