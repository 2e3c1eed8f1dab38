"""Creates admin keys, stores their SHA-256 digests and looks them up for the door.

An admin key gives access to the operators' routes and to the dashboard. Each has a name, which the audit log shows. The
key in the admin key file (web/runtime/admin_key.py) works beside them, and also while the store does not answer.
"""

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record, local_actor, record
from shared.accounts.api_keys import MIN_ID_DIGITS, check_span
from shared.accounts.key_record import ID_DIGITS, digest_of
from shared.accounts.read_with_clock import read_with_time
from shared.errors import ConfigError
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: Each admin key begins with this prefix, which distinguishes it from a tenant's API key.
ADMIN_KEY_PREFIX = "psa_"
#: The name of the key in the admin key file. No key in the store may have this name.
FILE_KEY_NAME = "admin key file"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}\Z")


@dataclass(frozen=True)
class AdminKey:
    """The stored record of an admin key. The key itself is not stored."""

    #: SHA-256 of the key, in hex.
    digest: str
    name: str
    #: Creation and expiry, in ms since the epoch by the store's TIME. If `expires_ms` is None, the key never expires.
    created_ms: int
    expires_ms: int | None

    @property
    def id(self) -> str:
        """The first digits of the digest; lists and commands identify the key by them."""
        return self.digest[:ID_DIGITS]

    def expired(self, now_ms: int) -> bool:
        """Return whether the key has expired at `now_ms` by the store's TIME."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


class AdminKeys:
    """All admin keys in the store. Methods raise ConfigError for invalid values, and StoreUnavailable as in Store."""

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        self._actor = actor or local_actor()

    def create(self, name: str, *, expires_in_ms: int | None = None) -> tuple[str, AdminKey]:
        """Create a key and return it with its record. The name must be unique among the unexpired admin keys."""
        if not _NAME.match(name):
            raise ConfigError(f"name={name!r} is not 1 to 63 letters, digits, '.', '_', '@' and '-'")
        check_span("expires_in_ms", expires_in_ms)
        key = ADMIN_KEY_PREFIX + secrets.token_urlsafe(32)

        def add(pipe: Pipeline) -> AdminKey:
            now_ms, existing = self.ls()
            if any(one.name == name and not one.expired(now_ms) for one in existing):
                raise ConfigError(f"an admin key with name={name!r} exists already; remove it first")
            new = AdminKey(digest_of(key), name, now_ms, None if expires_in_ms is None else now_ms + expires_in_ms)
            stored = json.dumps({"name": name, "created_ms": new.created_ms, "expires_ms": new.expires_ms})
            pipe.multi()
            pipe.hset(keys.admin_keys(), new.digest, stored)
            add_record(pipe, self._actor, "admin_key.add", f"admin key {new.id}, {name!r}")
            return new

        # The transaction starts again if another process adds a key at the same time, which may have this name.
        with store_faults(self._client):
            new: Any = self._client.transaction(add, keys.admin_keys(), value_from_callable=True)  # type: ignore[arg-type]  # the callable returns a value
        return key, new

    def find(self, digest: str) -> AdminKey | None:
        """Return the record of the key with this digest, or None if it is unknown or has expired."""
        stored, now_ms = read_with_time(self._client, lambda pipe: pipe.hget(keys.admin_keys(), digest))
        if stored is None:
            return None
        found = parse(digest, text(stored))
        return None if found.expired(now_ms) else found

    def ls(self) -> tuple[int, tuple[AdminKey, ...]]:
        """Return (the store's TIME in ms, the records of all keys, the oldest first); expired keys are included."""
        stored, now_ms = read_with_time(self._client, lambda pipe: pipe.hgetall(keys.admin_keys()))
        found = [parse(text(digest), text(raw)) for digest, raw in stored.items()]
        return now_ms, tuple(sorted(found, key=lambda one: (one.created_ms, one.digest)))

    def rm(self, selector: str) -> tuple[AdminKey, ...]:
        """Remove the keys with the name `selector`, or the one key whose digest starts with it. Return their records.

        Raises ConfigError if the digests of several keys start with `selector`.
        """
        _, existing = self.ls()
        found = tuple(one for one in existing if one.name == selector)
        if not found and re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", selector):
            found = tuple(one for one in existing if one.digest.startswith(selector))
            if len(found) > 1:
                raise ConfigError(f"{selector!r} matches the digests of {len(found)} admin keys; give more digits")
        if found:
            with store_faults(self._client):
                self._client.hdel(keys.admin_keys(), *(one.digest for one in found))
        for one in found:
            record(self._client, self._actor, "admin_key.rm", f"admin key {one.id}, {one.name!r}")
        return found


def parse(digest: str, raw: str) -> AdminKey:
    """Return the record that `raw` represents. Raises ConfigError, which says how to remove a spoiled record."""
    try:
        fields: dict[str, Any] = json.loads(raw)
        expires_ms = fields["expires_ms"]
        return AdminKey(
            digest, str(fields["name"]), int(fields["created_ms"]), None if expires_ms is None else int(expires_ms)
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"the record of admin key {digest[:ID_DIGITS]} in {keys.admin_keys()} cannot be parsed; "
            f"remove it with `penstock redis HDEL {keys.admin_keys()} {digest}`"
        ) from None
