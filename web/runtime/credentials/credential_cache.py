"""Cache of API keys and tenant policies, whose entries are valid for at most half a second.

Without the cache, each request would need two more round trips to the store before it is admitted. In measurements,
these round trips took a third of the time of a refusal. Entries are valid only briefly because the documentation
promises that a revoked key, a disabled tenant and a changed policy take effect within a second.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from shared.accounts.admin_keys import AdminKey, AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import KeyRecord, digest_of
from shared.accounts.tenants import Tenants
from shared.clock import Clock
from shared.errors import ConfigError
from shared.jobs.tenant_policy import TenantPolicy
from shared.log import LimitedEvent

#: The record that the cache keeps of a key.
Record = TypeVar("Record", KeyRecord, AdminKey)

#: Each look at such a policy, or at the record of such a key, finds the problem again.
_SPOILED = LimitedEvent("policy.spoiled", interval_s=3_600)
_UNREADABLE = LimitedEvent("key.unreadable", interval_s=3_600)

#: The longest time for which a cached entry is valid, in seconds. The promise above allows up to 1 s.
_TTL_S = 0.5
#: The maximum number of cached keys, and of cached policies. The least recently used entry is dropped first.
_MAX_ENTRIES = 4096
#: The maximum number of cached admin keys. There is one for each operator.
_MAX_ADMIN_ENTRIES = 256


class _UnknownKeyError(Exception):
    """Raised for a key that does not exist. lru_cache does not cache exceptions, so a new key is valid at once."""


def _cached(find: Callable[[str], Record | None], max_entries: int) -> Callable[[str, int], Record | None]:
    """Return a function of a digest and a period that caches the records which `find` returns for digests.

    A record that another program has spoiled counts as missing.
    """

    @lru_cache(maxsize=max_entries)
    def known(digest: str, _period: int) -> Record:
        try:
            found = find(digest)
        except ConfigError as error:
            _UNREADABLE.log("error", problem=str(error))
            raise _UnknownKeyError from error
        if found is None:
            raise _UnknownKeyError
        return found

    def find_cached(digest: str, period: int) -> Record | None:
        try:
            return known(digest, period)
        except _UnknownKeyError:
            return None

    return find_cached


class CredentialCache:
    """Caches the results of ApiKeys, Tenants and AdminKeys. Their exceptions are passed on and are not cached."""

    def __init__(self, api_keys: ApiKeys, tenants: Tenants, admin_keys: AdminKeys, clock: Clock) -> None:
        self._clock = clock

        @lru_cache(maxsize=_MAX_ENTRIES)
        def policy(tenant: str, _period: int) -> TenantPolicy | None:
            found, problems = tenants.read(tenant)
            if problems:
                _SPOILED.log("error", problems=problems)
            return found

        self._policy = policy
        self._key = _cached(api_keys.find, _MAX_ENTRIES)
        self._admin_key = _cached(admin_keys.find, _MAX_ADMIN_ENTRIES)

    def policy(self, tenant: str) -> TenantPolicy | None:
        """Return the tenant's policy, or None if no policy is set for it."""
        return self._policy(tenant, self._period())

    def key(self, key: str) -> KeyRecord | None:
        """Return the tenant and the rights of an API key, or None if the key is unknown or has expired."""
        return self._key(digest_of(key), self._period())

    def admin_key(self, key: str) -> AdminKey | None:
        """Return the name and expiry of an admin key in the store, or None if the key is unknown or has expired."""
        return self._admin_key(digest_of(key), self._period())

    def _period(self) -> int:
        """Return the number of the current period. Cache keys contain this number, so older entries are not found."""
        return int(self._clock.monotonic() / _TTL_S)
