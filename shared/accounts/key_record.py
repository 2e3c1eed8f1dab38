"""Defines the stored record of an API key."""

import fnmatch
import hashlib
from dataclasses import dataclass

from shared.accounts.stored_keys import StoredKey
from shared.jobs.key_bounds import KeyBounds

#: The prefix of each key, so that people and scanners for leaked secrets recognize it.
KEY_PREFIX = "psk_"
#: Longer texts are not keys; a key has 47 characters.
_MAX_KEY_CHARS = 128


@dataclass(frozen=True)
class KeyRecord(StoredKey):
    """The stored record of an API key."""

    digest: str
    tenant: str
    label: str
    created_ms: int
    expires_ms: int | None = None
    #: Glob pattern of the other tenants that a request with this key may name in X-Tenant; None allows no other tenant.
    act_as: str | None = None
    #: The bounds of this key, in addition to those of its tenant; None if it has none.
    bounds: KeyBounds | None = None
    #: Whether the key was replaced by `rotate` and is valid only until the overlap ends.
    rotated: bool = False

    def may_act_as(self, tenant: str) -> bool:
        return tenant == self.tenant or (self.act_as is not None and fnmatch.fnmatchcase(tenant, self.act_as))


@dataclass(frozen=True)
class NewKey:
    """A new key and its record; the key itself is not stored anywhere."""

    key: str
    record: KeyRecord


def may_be_key(text: str) -> bool:
    """Return whether this text has the form of a key, so that it is worth a look-up."""
    return text.startswith(KEY_PREFIX) and len(text) <= _MAX_KEY_CHARS


def digest_of(key: str) -> str:
    """Return the SHA-256 of a key in hex, the only form in which it is stored."""
    return hashlib.sha256(key.encode()).hexdigest()
