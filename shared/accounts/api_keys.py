"""Creates API keys, stores their SHA-256 digests and looks them up for the door.

A key has 256 random bits and cannot be guessed, so a fast digest is as secure as a slow one. A key is shown only once,
when it is created. The door looks up the key's digest in a hash table and never compares keys. The time of a look-up
may depend on the digest, but a client cannot choose a digest without inverting SHA-256, so timing reveals no part of a
key.
"""

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace

from shared.accounts.changed_accounts import AccountKind
from shared.accounts.key_record import KEY_PREFIX, KeyRecord, NewKey, digest_of
from shared.accounts.read_with_clock import read_with_time
from shared.accounts.stored_keys import StoredKeys, check_span
from shared.accounts.tenants import check_name
from shared.errors import ConfigError
from shared.jobs.key_bounds import KeyBounds
from shared.store import keys

#: The most keys that a tenant can have. Each of them may have a successor beside it.
MAX_KEYS = 500

_LABEL = re.compile(r"[^\s]([^\n\r\t]{0,62}[^\s])?\Z")
_GLOB = re.compile(r"[A-Za-z0-9_*?!\[\]-]{1,128}\Z")


#: The records to store, and those to remove.
_Plan = tuple[Sequence[KeyRecord], Sequence[KeyRecord]]


class ApiKeys(StoredKeys[KeyRecord]):
    """All API keys in the store."""

    kind, name_field, hash_key = AccountKind.KEY, "label", keys.keys()

    def create(
        self,
        tenant: str,
        *,
        label: str = "",
        expires_in_ms: int | None = None,
        act_as: str | None = None,
        bounds: KeyBounds | None = None,
    ) -> NewKey:
        """Create a key for a tenant. A non-empty label must be unique among the tenant's unexpired keys.

        If the tenant has MAX_KEYS, its oldest expired key is removed; raises ConfigError if none has expired.
        """
        check_name(tenant)
        if label and not (_LABEL.match(label) and label.isprintable()):
            raise ConfigError(f"label={label!r} is not 1 to 64 printable characters without spaces at its ends")
        if act_as is not None and not _GLOB.match(act_as):
            raise ConfigError(
                f"act_as={act_as!r} is not a pattern of tenant names: letters, digits, '_', '-', '*', '?', '[…]'"
            )
        check_span("expires_in_ms", expires_in_ms)
        own_bounds = None if bounds == KeyBounds() else bounds
        created: list[NewKey] = []

        def plan() -> _Plan:
            now_ms, records = self.ls(tenant)
            if label and any(record.label == label and not record.expired(now_ms) for record in records):
                raise ConfigError(
                    f"tenant {tenant!r} already has a key with label={label!r}; rotate it, or remove it first"
                )
            expires_ms = None if expires_in_ms is None else now_ms + expires_in_ms
            created[:] = [_new_key(KeyRecord("", tenant, label, now_ms, expires_ms, act_as, own_bounds))]
            return [created[0].record], self._to_drop(records, now_ms, MAX_KEYS, f"tenant={tenant!r} has")

        self._write("key.add", plan)
        return created[0]

    def find_valid(self, digests: Collection[str]) -> frozenset[str]:
        """Return those of the digests whose keys exist and have not expired, in one round trip.

        A key whose record cannot be parsed counts as valid here, so that a spoiled record ends no open stream.
        """
        if not digests:
            return frozenset()
        asked = list(digests)
        stored, now_ms = read_with_time(self._client, lambda pipe: pipe.hmget(keys.keys(), asked))
        found = zip(asked, stored, strict=True)
        return frozenset(digest for digest, raw in found if raw is not None and not self._has_expired(raw, now_ms))

    def _has_expired(self, raw: bytes, now_ms: int) -> bool:
        try:
            return self.parse("", raw).expired(now_ms)
        except ConfigError:
            return False

    def ls(self, tenant: str | None = None) -> tuple[int, tuple[KeyRecord, ...]]:
        """Return (the store's TIME in ms, the records of all keys or of one tenant's keys), the oldest key first.

        The records of expired keys are included.
        """
        if tenant is None:
            return self._read()
        check_name(tenant)
        return self._read(lambda one: one.tenant == tenant)

    def rm(self, selector: str, *, tenant: str | None = None) -> tuple[KeyRecord, ...]:
        """Remove the key whose digest starts with `selector`, or all keys of one tenant that have the label `selector`.

        Return the records of the removed keys. Raises ConfigError if keys of several tenants have this label, or if
        `selector` is ambiguous, as `_select` describes.
        """
        found = self._find(selector, tenant)[1]
        self._remove(found)
        return found

    def bound(self, selector: str, changes: Mapping[str, int | None], *, tenant: str | None = None) -> KeyRecord | None:
        """Set the bounds in `changes` on a key, where None removes a bound. Return its record; None if no key matches.

        The key is selected as in `rm`. Raises ConfigError if several keys have the label, or if a value is invalid.
        """
        changed: list[KeyRecord] = []

        def plan() -> _Plan:
            now_ms, found = self._find(selector, tenant)
            valid = [record for record in found if not record.expired(now_ms)]
            if len(valid) > 1:
                raise ConfigError(
                    f"{selector!r} is the label of {len(valid)} keys; name one by its id (`penstock keys ls`)"
                )
            bounds = [replace(record.bounds or KeyBounds(), **changes) for record in valid]
            changed[:] = [
                replace(record, bounds=None if bound == KeyBounds() else bound)
                for record, bound in zip(valid, bounds, strict=True)
            ]
            return changed, ()

        self._write("key.set", plan)
        return changed[0] if changed else None

    def rotate(self, selector: str, *, overlap_ms: int, tenant: str | None = None) -> NewKey | None:
        """Create the successor of a key; the old key expires within `overlap_ms`. Return None if no valid key matches.

        The successor has the same tenant, label, `act_as`, bounds and lifetime as the old key. If several keys have the
        label because of earlier rotations, the newest one is rotated. Raises ConfigError for a key that was already
        rotated: its original lifetime is no longer known, and a successor would inherit the shortened lifetime.
        """
        check_span("overlap_ms", overlap_ms, min_ms=0)
        successors: list[NewKey] = []

        def plan() -> _Plan:
            now_ms, found = self._find(selector, tenant)
            valid = [record for record in found if not record.expired(now_ms)]
            not_rotated = [record for record in valid if not record.rotated]
            successors.clear()
            if not valid:
                return (), ()
            if not not_rotated:
                raise ConfigError(
                    f"{selector!r} was rotated already; rotate its successor (`penstock keys ls`), or create a key"
                )
            old = not_rotated[-1]
            ends_ms = now_ms + overlap_ms
            ends_ms = ends_ms if old.expires_ms is None else min(ends_ms, old.expires_ms)
            retired = replace(old, expires_ms=ends_ms, rotated=True)
            expires_ms = None if old.expires_ms is None else now_ms + old.expires_ms - old.created_ms
            successors.append(_new_key(replace(old, created_ms=now_ms, expires_ms=expires_ms)))
            existing = self.ls(old.tenant)[1]
            dropped = self._to_drop(existing, now_ms, 2 * MAX_KEYS, f"tenant={old.tenant!r} has")
            return [successors[0].record, retired], dropped

        self._write("key.rotate", plan)
        return successors[0] if successors else None

    def _find(self, selector: str, tenant: str | None) -> tuple[int, tuple[KeyRecord, ...]]:
        now_ms, records = self.ls(tenant)
        labelled = [record for record in records if selector and record.label == selector]
        found = self._select(selector, labelled, records)
        if len({record.tenant for record in found}) > 1:
            owners = ", ".join(sorted({record.tenant for record in found}))
            raise ConfigError(
                f"label={selector!r} belongs to keys of several tenants ({owners}); choose one with --tenant"
            )
        return now_ms, found

    def _parse(self, digest: str, raw: str) -> KeyRecord:
        # Ignore unknown fields, which a newer version of Penstock may have written.
        known = {name: value for name, value in json.loads(raw).items() if name in KeyRecord.__dataclass_fields__}
        if known.get("bounds") is not None:
            known["bounds"] = KeyBounds(**known["bounds"])
        known["created_ms"] = int(known["created_ms"])
        known["expires_ms"] = None if known.get("expires_ms") is None else int(known["expires_ms"])
        return KeyRecord(**(known | {"digest": digest}))

    def _dump(self, one: KeyRecord) -> str:
        left_out = {"digest"} | {name for name in ("rotated", "bounds") if not getattr(one, name)}
        fields = {name: value for name, value in asdict(one).items() if name not in left_out}
        return json.dumps(fields, ensure_ascii=False)

    def _describe(self, one: KeyRecord) -> str:
        given = {} if one.bounds is None else asdict(one.bounds)
        bounds = "".join(f" {name}={value}" for name, value in given.items() if value is not None)
        return f"key {one.id} of tenant {one.tenant}" + (f", {one.label!r}" if one.label else "") + bounds


def _new_key(record: KeyRecord) -> NewKey:
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return NewKey(key, replace(record, digest=digest_of(key)))
