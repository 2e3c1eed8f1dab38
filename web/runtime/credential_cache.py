"""Who a key stands for and what its tenant may do, as the store said at most half a second ago.

Each would be a round trip to the store of its own before every request's admission: measured, a third of
a refusal. A revoked key, a disabled tenant and a changed policy are promised to count within a second.
"""

from functools import lru_cache

from shared.clock import Clock
from shared.jobs.tenant_policy import TenantPolicy
from shared.store.api_keys import ApiKeys, KeyFacts, digest_of
from shared.store.tenants import Tenants

#: How long an answer counts, in seconds; half of what is promised.
_COUNTS_S = 0.5
#: Answers kept of each kind; what is asked for longest ago goes first.
_KEPT = 4096


class _UnknownError(Exception):
    """No such key. Raised so as not to be remembered: a key that is made now opens the door now."""


class CredentialCache:
    """Answers of the key ring and the tenants, kept for a moment. Raises what they raise; faults are not kept."""

    def __init__(self, keyring: ApiKeys, tenants: Tenants, clock: Clock) -> None:
        self._clock = clock

        @lru_cache(maxsize=_KEPT)
        def policy(tenant: str, _moment: int) -> TenantPolicy | None:
            return tenants.get(tenant)

        @lru_cache(maxsize=_KEPT)
        def facts(digest: str, _moment: int) -> KeyFacts:
            found = keyring.find(digest)
            if found is None:
                raise _UnknownError
            return found

        self._policy, self._facts = policy, facts

    def policy(self, tenant: str) -> TenantPolicy | None:
        """What was set for the tenant, or None."""
        return self._policy(tenant, self._moment())

    def key(self, key: str) -> KeyFacts | None:
        """Whom the key stands for, or None when it is unknown or has expired."""
        try:
            return self._facts(digest_of(key), self._moment())
        except _UnknownError:
            return None

    def _moment(self) -> int:
        return int(self._clock.monotonic() / _COUNTS_S)
