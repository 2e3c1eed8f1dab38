"""Cache of API keys and tenant policies, whose entries are valid for at most half a second.

Without the cache, each request would need two more round trips to the store before it is admitted. In measurements,
these round trips took a third of the time of a refusal. Entries are valid only briefly because the documentation
promises that a revoked key, a disabled tenant and a changed policy take effect within a second.
"""

from functools import lru_cache

from shared.accounts.admin_keys import AdminKey, AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import KeyRecord, digest_of
from shared.accounts.tenants import Tenants
from shared.clock import Clock
from shared.jobs.tenant_policy import TenantPolicy

#: The longest time for which a cached entry is valid, in seconds. The promise above allows up to 1 s.
_TTL_S = 0.5
#: The maximum number of cached keys, and of cached policies. The least recently used entry is dropped first.
_MAX_ENTRIES = 4096
#: The maximum number of cached admin keys. There is one for each operator.
_MAX_ADMIN_ENTRIES = 256


class _UnknownKeyError(Exception):
    """Raised for a key that does not exist. lru_cache does not cache exceptions, so a new key is valid at once."""


class CredentialCache:
    """Caches what ApiKeys, Tenants and AdminKeys return. Their exceptions are passed on and are not cached."""

    def __init__(self, api_keys: ApiKeys, tenants: Tenants, admin_keys: AdminKeys, clock: Clock) -> None:
        self._clock = clock

        @lru_cache(maxsize=_MAX_ENTRIES)
        def policy(tenant: str, _period: int) -> TenantPolicy | None:
            return tenants.get(tenant)

        @lru_cache(maxsize=_MAX_ENTRIES)
        def facts(digest: str, _period: int) -> KeyRecord:
            found = api_keys.find(digest)
            if found is None:
                raise _UnknownKeyError
            return found

        @lru_cache(maxsize=_MAX_ADMIN_ENTRIES)
        def admin_facts(digest: str, _period: int) -> AdminKey:
            found = admin_keys.find(digest)
            if found is None:
                raise _UnknownKeyError
            return found

        self._policy, self._facts, self._admin_facts = policy, facts, admin_facts

    def policy(self, tenant: str) -> TenantPolicy | None:
        """Return the tenant's policy, or None if no policy is set for it."""
        return self._policy(tenant, self._period())

    def key(self, key: str) -> KeyRecord | None:
        """Return the tenant and the rights of an API key, or None if the key is unknown or has expired."""
        try:
            return self._facts(digest_of(key), self._period())
        except _UnknownKeyError:
            return None

    def admin_key(self, key: str) -> AdminKey | None:
        """Return the name and expiry of an admin key in the store, or None if the key is unknown or has expired."""
        try:
            return self._admin_facts(digest_of(key), self._period())
        except _UnknownKeyError:
            return None

    def _period(self) -> int:
        """Return the number of the current period. Cache keys contain this number, so older entries are not found."""
        return int(self._clock.monotonic() / _TTL_S)
