"""Defines the stored record of an API key, and writes and parses it."""

import fnmatch
import hashlib
import json
from dataclasses import asdict, dataclass

from shared.errors import ConfigError
from shared.jobs.key_bounds import KeyBounds
from shared.store import keys

#: The number of hex digits of the digest that lists show as a key's id.
ID_DIGITS = 12
#: The prefix of each key, so that people and scanners for leaked secrets recognize it.
KEY_PREFIX = "psk_"
#: Longer texts are not keys; a key has 47 characters.
_MAX_KEY_CHARS = 128


@dataclass(frozen=True)
class KeyRecord:
    """The stored record of a key. The key itself is not stored."""

    #: SHA-256 of the key, in hex.
    digest: str
    tenant: str
    label: str
    #: Creation and expiry, in ms since the epoch by the store's TIME. If `expires_ms` is None, the key never expires.
    created_ms: int
    expires_ms: int | None = None
    #: Glob pattern of the other tenants that a request with this key may name in X-Tenant; None allows no other tenant.
    act_as: str | None = None
    #: The bounds of this key, in addition to those of its tenant; None if it has none.
    bounds: KeyBounds | None = None
    #: Whether the key was replaced by `rotate` and is valid only until the overlap ends.
    rotated: bool = False

    @property
    def id(self) -> str:
        """The first digits of the digest; lists and commands identify the key by them."""
        return self.digest[:ID_DIGITS]

    def expired(self, now_ms: int) -> bool:
        """Return whether the key has expired at `now_ms` by the store's TIME."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

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


def dump(record: KeyRecord) -> str:
    """Return the record as it is stored, without the digest, which is its field in the hash."""
    fields = asdict(record)
    del fields["digest"]
    if not record.rotated:
        del fields["rotated"]
    if record.bounds is None:
        del fields["bounds"]
    return json.dumps(fields, ensure_ascii=False)


def parse(digest: str, raw: str) -> KeyRecord:
    """Return the record that `raw` represents. Raises ConfigError, which says how to remove a spoiled record."""
    try:
        # Ignore unknown fields, which a newer version of Penstock may have written.
        known = {name: value for name, value in json.loads(raw).items() if name in KeyRecord.__dataclass_fields__}
        if known.get("bounds") is not None:
            known["bounds"] = KeyBounds(**known["bounds"])
        return KeyRecord(**(known | {"digest": digest}))
    except (ConfigError, ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"the record of key {digest[:ID_DIGITS]} in {keys.keys()} cannot be parsed; "
            f"remove it with `penstock redis HDEL {keys.keys()} {digest}`"
        ) from None
