"""Creates admin keys, stores their SHA-256 digests and looks them up for the door.

An admin key gives access to the operators' routes and to the dashboard. Each has a name, which the audit log shows. The
key in the admin key file (web/runtime/start.py) works beside them, and also while the store does not answer.
"""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.accounts.changed_accounts import AccountKind
from shared.accounts.key_record import digest_of
from shared.accounts.stored_keys import StoredKey, StoredKeys, check_span
from shared.errors import ConfigError
from shared.store import keys

#: Each admin key begins with this prefix, which distinguishes it from a tenant's API key.
ADMIN_KEY_PREFIX = "psa_"
#: The name of the key in the admin key file. No key in the store may have this name.
FILE_KEY_NAME = "admin key file"

#: The most admin keys in the store.
MAX_ADMIN_KEYS = 500

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}\Z")


@dataclass(frozen=True)
class AdminKey(StoredKey):
    """The stored record of an admin key."""

    digest: str
    name: str
    created_ms: int
    expires_ms: int | None


class AdminKeys(StoredKeys[AdminKey]):
    """All admin keys in the store."""

    kind, name_field, hash_key = AccountKind.ADMIN_KEY, "name", keys.admin_keys()

    def create(self, name: str, *, expires_in_ms: int | None = None) -> tuple[str, AdminKey]:
        """Create a key and return it with its record. The name must be unique among the unexpired admin keys.

        If there are MAX_ADMIN_KEYS, the oldest expired one is removed; raises ConfigError if none has expired.
        """
        if not _NAME.match(name):
            raise ConfigError(f"name={name!r} is not 1 to 63 letters, digits, '.', '_', '@' and '-'")
        check_span("expires_in_ms", expires_in_ms)
        key = ADMIN_KEY_PREFIX + secrets.token_urlsafe(32)
        created: list[AdminKey] = []

        def plan() -> tuple[Sequence[AdminKey], Sequence[AdminKey]]:
            now_ms, existing = self.ls()
            if any(one.name == name and not one.expired(now_ms) for one in existing):
                raise ConfigError(f"an admin key with name={name!r} exists already; remove it first")
            expires_ms = None if expires_in_ms is None else now_ms + expires_in_ms
            created[:] = [AdminKey(digest_of(key), name, now_ms, expires_ms)]
            return created, self._to_drop(existing, now_ms, MAX_ADMIN_KEYS, "the store has")

        self._write("admin_key.add", plan)
        return key, created[0]

    def ls(self) -> tuple[int, tuple[AdminKey, ...]]:
        """Return (the store's TIME in ms, the records of all keys, the oldest first); expired keys are included."""
        return self._read()

    def rm(self, selector: str) -> tuple[AdminKey, ...]:
        """Remove the one key whose digest starts with `selector`, or the keys with this name. Return their records.

        Raises ConfigError if `selector` is ambiguous, as `_select` describes.
        """
        _, existing = self.ls()
        found = self._select(selector, [one for one in existing if one.name == selector], existing)
        self._remove(found)
        return found

    def _parse(self, digest: str, raw: str) -> AdminKey:
        fields: dict[str, Any] = json.loads(raw)
        expires_ms = fields["expires_ms"]
        expires_ms = None if expires_ms is None else int(expires_ms)
        return AdminKey(digest, str(fields["name"]), int(fields["created_ms"]), expires_ms)

    def _dump(self, one: AdminKey) -> str:
        return json.dumps({"name": one.name, "created_ms": one.created_ms, "expires_ms": one.expires_ms})

    def _describe(self, one: AdminKey) -> str:
        return f"admin key {one.id}, {one.name!r}"
