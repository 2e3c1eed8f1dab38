"""Cache of API keys and tenant policies, whose entries are valid for half a second at most.

Without the cache, each request would need two more round trips to the store before it is admitted. In measurements,
these round trips took a third of the time of a refusal. Entries are valid only briefly because the documentation
promises that a revoked key, a disabled tenant and a changed policy take effect within a second.
"""

from collections.abc import Callable
from typing import TypeVar

from shared.accounts.admin_keys import AdminKey
from shared.accounts.key_record import KeyRecord, digest_of
from shared.clock import Clock
from shared.errors import ConfigError
from shared.jobs.tenant_policy import TenantPolicy
from shared.log import LimitedEvent
from web.runtime.accounts import AskAccounts
from web.runtime.shared_answer import SharedAnswers

#: The record that the cache keeps of a key.
Record = TypeVar("Record", KeyRecord, AdminKey)

#: Each look at such a policy, or at the record of such a key, finds the problem again.
_SPOILED = LimitedEvent("policy.spoiled", interval_s=3_600)
_UNREADABLE = LimitedEvent("key.unreadable", interval_s=3_600)

#: The longest time for which a cached entry is valid, in seconds. The promise above allows up to 1 s, and the reading
#: takes some of it.
_MAX_AGE_S = 0.49
#: The maximum number of cached keys, and of cached policies. The least recently used entry is dropped first.
_MAX_ENTRIES = 4096
#: The maximum number of cached admin keys. There is one for each operator.
_MAX_ADMIN_ENTRIES = 256


class _UnknownKeyError(Exception):
    """Raised for a key that does not exist. Exceptions are not cached, so a new key is valid at once."""


class CredentialCache:
    """Caches what `ask` reads of the accounts of a cell. Exceptions are passed on and are not cached.

    Requests at the same time whose entry is too old cause one reading.
    """

    def __init__(self, ask: AskAccounts, clock: Clock) -> None:
        def read_policy(tenant: str) -> TenantPolicy | None:
            found, problems = ask(lambda accounts: accounts.tenants.read(tenant))
            if problems:
                _SPOILED.log("error", problems=problems)
            return found

        self._policies = SharedAnswers(read_policy, clock, max_age_s=_MAX_AGE_S, most=_MAX_ENTRIES)

        def find_key(digest: str) -> KeyRecord | None:
            return ask(lambda accounts: accounts.api_keys.find(digest))

        def find_admin_key(digest: str) -> AdminKey | None:
            return ask(lambda accounts: accounts.admin_keys.find(digest))

        self._keys = SharedAnswers(_known(find_key), clock, max_age_s=_MAX_AGE_S, most=_MAX_ENTRIES)
        self._admin_keys = SharedAnswers(_known(find_admin_key), clock, max_age_s=_MAX_AGE_S, most=_MAX_ADMIN_ENTRIES)

    def policy(self, tenant: str) -> TenantPolicy | None:
        """Return the tenant's policy, or None if no policy is set for it."""
        return self._policies.get(tenant)

    def key(self, key: str) -> KeyRecord | None:
        """Return the tenant and the rights of an API key, or None if the key is unknown or has expired."""
        return _found(self._keys, key)

    def admin_key(self, key: str) -> AdminKey | None:
        """Return the name and expiry of an admin key in the store, or None if the key is unknown or has expired."""
        return _found(self._admin_keys, key)


def _known(find: Callable[[str], Record | None]) -> Callable[[str], Record]:
    """Return a function of a digest that raises _UnknownKeyError if `find` returns None.

    A record that another program has spoiled counts as missing.
    """

    def find_known(digest: str) -> Record:
        try:
            found = find(digest)
        except ConfigError as error:
            _UNREADABLE.log("error", problem=str(error))
            raise _UnknownKeyError from error
        if found is None:
            raise _UnknownKeyError
        return found

    return find_known


def _found(records: SharedAnswers[Record], key: str) -> Record | None:
    try:
        return records.get(digest_of(key))
    except _UnknownKeyError:
        return None
