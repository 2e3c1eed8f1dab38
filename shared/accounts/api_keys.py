"""Creates API keys, stores their SHA-256 digests and looks them up for the door.

A key has 256 random bits and cannot be guessed, so a fast digest is as secure as a slow one. A key is shown only once,
when it is created. The door looks up the key's digest in a hash table and never compares keys. The time of a look-up
may depend on the digest, but a client cannot choose a digest without inverting SHA-256, so timing reveals no part of a
key.
"""

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record, local_actor, record
from shared.accounts.key_record import KEY_PREFIX, KeyRecord, NewKey, digest_of, dump, parse
from shared.accounts.read_with_clock import read_with_time
from shared.accounts.tenants import check_name
from shared.errors import ConfigError
from shared.jobs.key_bounds import KeyBounds
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The smallest number of digits of an id that `rm` and `rotate` accept. With fewer digits, a mistyped id could match
#: another key.
MIN_ID_DIGITS = 6


_LABEL = re.compile(r"[^\s]([^\n\r\t]{0,62}[^\s])?\Z")
_GLOB = re.compile(r"[A-Za-z0-9_*?!\[\]-]{1,128}\Z")
#: Ten years, in ms; a longer lifetime is assumed to be a typo.
_MAX_SPAN_MS = 10 * 366 * 86_400_000


class ApiKeys:
    """All API keys in the store. Methods raise ConfigError for invalid values, and StoreUnavailable as in Store."""

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    def create(
        self,
        tenant: str,
        *,
        label: str = "",
        expires_in_ms: int | None = None,
        act_as: str | None = None,
        bounds: KeyBounds | None = None,
    ) -> NewKey:
        """Create a key for a tenant. A non-empty label must be unique among the tenant's unexpired keys."""
        check_name(tenant)
        if label and not _LABEL.match(label):
            raise ConfigError(f"label={label!r} is not 1 to 64 characters on one line, without spaces at its ends")
        if act_as is not None and not _GLOB.match(act_as):
            raise ConfigError(
                f"act_as={act_as!r} is not a pattern of tenant names: letters, digits, '_', '-', '*', '?', '[…]'"
            )
        check_span("expires_in_ms", expires_in_ms)
        created: list[NewKey] = []

        def plan() -> list[KeyRecord]:
            now_ms, records = self._read()
            if label and any(
                record.tenant == tenant and record.label == label and not record.expired(now_ms) for record in records
            ):
                raise ConfigError(
                    f"tenant {tenant!r} already has a key with label={label!r}; rotate it, or remove it first"
                )
            expires_ms = None if expires_in_ms is None else now_ms + expires_in_ms
            created[:] = [_new_key(KeyRecord("", tenant, label, now_ms, expires_ms, act_as, bounds))]
            return [created[0].record]

        self._write("key.add", plan)
        return created[0]

    def lookup(self, key: str, now_ms: int | None = None) -> KeyRecord | None:
        """Return the record of this key, or None if it is unknown or has expired.

        Expiry is checked at `now_ms` or, if that is None, by the store's TIME.
        """
        return self.find(digest_of(key), now_ms)

    def find(self, digest: str, now_ms: int | None = None) -> KeyRecord | None:
        stored, store_ms = read_with_time(self._client, lambda pipe: pipe.hget(keys.keys(), digest))
        if stored is None:
            return None
        record = parse(digest, text(stored))
        return None if record.expired(store_ms if now_ms is None else now_ms) else record

    def find_valid(self, digests: Collection[str]) -> frozenset[str]:
        """Return those of the digests whose keys exist and have not expired, in one round trip.

        A key whose record cannot be parsed counts as valid here, so that a spoiled record ends no open stream.
        """
        if not digests:
            return frozenset()
        asked = list(digests)
        stored, now_ms = read_with_time(self._client, lambda pipe: pipe.hmget(keys.keys(), asked))
        found = zip(asked, stored, strict=True)
        return frozenset(digest for digest, raw in found if raw is not None and not _has_expired(raw, now_ms))

    def ls(self, tenant: str | None = None) -> tuple[int, tuple[KeyRecord, ...]]:
        """Return (the store's TIME in ms, the records of all keys or of one tenant's keys), the oldest key first.

        The records of expired keys are included.
        """
        now_ms, records = self._read()
        chosen = [record for record in records if tenant is None or record.tenant == check_name(tenant)]
        return now_ms, tuple(sorted(chosen, key=lambda record: (record.created_ms, record.digest)))

    def rm(self, selector: str, *, tenant: str | None = None) -> tuple[KeyRecord, ...]:
        """Remove the key whose digest starts with `selector`, or all keys of one tenant that have the label `selector`.

        Return the records of the removed keys. Raises ConfigError if keys of several tenants have this label, or if
        the digests of several keys start with `selector`.
        """
        found = self._find(selector, tenant)[1]
        if found:
            with store_faults(self._client):
                self._client.hdel(keys.keys(), *(one.digest for one in found))
        for one in found:
            record(self._client, self._actor, "key.rm", _describe(one))
        return found

    def bound(self, selector: str, changes: Mapping[str, int | None], *, tenant: str | None = None) -> KeyRecord | None:
        """Set the bounds in `changes` on a key, where None removes a bound. Return its record; None if no key matches.

        The key is selected as in `rm`. Raises ConfigError if several keys have the label, or if a value is invalid.
        """
        changed: list[KeyRecord] = []

        def plan() -> list[KeyRecord]:
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
            return changed

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

        def plan() -> list[KeyRecord]:
            now_ms, found = self._find(selector, tenant)
            valid = [record for record in found if not record.expired(now_ms)]
            not_rotated = [record for record in valid if not record.rotated]
            successors.clear()
            if not valid:
                return []
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
            return [successors[0].record, retired]

        self._write("key.rotate", plan)
        return successors[0] if successors else None

    def _write(self, what: str, plan: Callable[[], Sequence[KeyRecord]]) -> None:
        """Store the records that `plan` returns, if any, together with the record of the action on the first of them.

        `plan` reads the keys. It is called again if another process changes one before the records are stored, so that
        no change is lost, and no removed key comes back.
        """

        def write(pipe: Pipeline) -> None:
            planned = plan()
            pipe.multi()
            if planned:
                pipe.hset(keys.keys(), mapping={one.digest: dump(one) for one in planned})
                add_record(pipe, self._actor, what, _describe(planned[0]))

        with store_faults(self._client):
            self._client.transaction(write, keys.keys())

    def _find(self, selector: str, tenant: str | None) -> tuple[int, tuple[KeyRecord, ...]]:
        now_ms, records = self.ls(tenant)
        by_label = tuple(record for record in records if selector and record.label == selector)
        if len({record.tenant for record in by_label}) > 1:
            owners = ", ".join(sorted({record.tenant for record in by_label}))
            raise ConfigError(
                f"label={selector!r} belongs to keys of several tenants ({owners}); choose one with --tenant"
            )
        if by_label:
            return now_ms, by_label
        if not re.fullmatch(rf"[0-9a-f]{{{MIN_ID_DIGITS},64}}", selector):
            return now_ms, ()
        by_digest = tuple(record for record in records if record.digest.startswith(selector))
        if len(by_digest) > 1:
            raise ConfigError(f"{selector!r} matches the digests of {len(by_digest)} keys; give more digits")
        return now_ms, by_digest

    def _read(self) -> tuple[int, list[KeyRecord]]:
        stored, now_ms = read_with_time(self._client, lambda pipe: pipe.hgetall(keys.keys()))
        return now_ms, [parse(text(digest), text(raw)) for digest, raw in stored.items()]


def _describe(key: KeyRecord) -> str:
    given = {} if key.bounds is None else asdict(key.bounds)
    bounds = "".join(f" {name}={value}" for name, value in given.items() if value is not None)
    return f"key {key.id} of tenant {key.tenant}" + (f", {key.label!r}" if key.label else "") + bounds


def _new_key(record: KeyRecord) -> NewKey:
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return NewKey(key, replace(record, digest=digest_of(key)))


def check_span(name: str, span_ms: int | None, *, min_ms: int = 1) -> None:
    """Raise ConfigError, naming the value as `name`, if a lifetime is below `min_ms` or over ten years."""
    if span_ms is not None and not min_ms <= span_ms <= _MAX_SPAN_MS:
        raise ConfigError(f"{name}={span_ms} is out of range: {min_ms} to {_MAX_SPAN_MS} (ten years)")


def _has_expired(raw: bytes, now_ms: int) -> bool:
    try:
        return parse("", text(raw)).expired(now_ms)
    except ConfigError:
        return False
