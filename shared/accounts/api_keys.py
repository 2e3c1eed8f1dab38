"""Creates API keys, stores their SHA-256 digests and looks them up for the door.

A key has 256 random bits and cannot be guessed, so a fast digest is as secure as a slow one. A key is shown only once,
when it is created. The door looks up the key's digest in a hash table and never compares keys. The time of a look-up
may depend on the digest, but a client cannot choose a digest without inverting SHA-256, so timing reveals no part of a
key.
"""

import fnmatch
import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass, replace

import redis

from shared import store_clock
from shared.accounts.admin_actions import Actor, add_record, local_actor, record
from shared.accounts.tenants import check_name
from shared.errors import ConfigError
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The prefix by which people and scanners for leaked secrets recognize a key.
KEY_PREFIX = "psk_"
#: The number of hex digits of the digest that lists show as a key's id, and the smallest number that `rm` and `rotate`
#: accept. With fewer digits, a mistyped id could match another key.
ID_DIGITS, MIN_ID_DIGITS = 12, 6

#: Longer texts are not keys; a key has 47 characters.
_MAX_KEY_CHARS = 128

_LABEL = re.compile(r"[^\s]([^\n\r\t]{0,62}[^\s])?\Z")
_GLOB = re.compile(r"[A-Za-z0-9_*?!\[\]-]{1,128}\Z")
#: Ten years, in ms; a longer lifetime is assumed to be a typo.
_MAX_SPAN_MS = 10 * 366 * 86_400_000


@dataclass(frozen=True)
class KeyRecord:
    """What the store records about a key. The key itself is not stored."""

    #: SHA-256 of the key, in hex.
    digest: str
    tenant: str
    label: str
    #: Creation and expiry, in ms since the epoch by the store's TIME. If `expires_ms` is None, the key never expires.
    created_ms: int
    expires_ms: int | None = None
    #: Glob pattern of the other tenants that a request with this key may name in X-Tenant; None allows no other tenant.
    act_as: str | None = None
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
        """Return whether a request with this key may be made for `tenant`."""
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


class ApiKeys:
    """All API keys in the store. Methods raise ConfigError for invalid values, and StoreUnavailable as in Store."""

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    def create(
        self, tenant: str, *, label: str = "", expires_in_ms: int | None = None, act_as: str | None = None
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
        now_ms, records = self._read()
        if label and any(
            record.tenant == tenant and record.label == label and not record.expired(now_ms) for record in records
        ):
            raise ConfigError(
                f"tenant {tenant!r} already has a key with label={label!r}; rotate it, or remove it first"
            )
        expires_ms = None if expires_in_ms is None else now_ms + expires_in_ms
        new = _new_key(KeyRecord("", tenant, label, now_ms, expires_ms, act_as))
        self._write("key.add", new.record)
        return new

    def lookup(self, key: str, now_ms: int | None = None) -> KeyRecord | None:
        """Return the record of this key, or None if it is unknown or has expired.

        Expiry is checked at `now_ms`. If that is None, the store's TIME is read in the same round trip.
        """
        return self.find(digest_of(key), now_ms)

    def find(self, digest: str, now_ms: int | None = None) -> KeyRecord | None:
        """Return the record of the key with this digest, or None as in `lookup`."""
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.hget(keys.keys(), digest)
            if now_ms is None:
                pipe.time()
                pipe.mget(keys.of_time())
            stored, *time = pipe.execute()
        if stored is None:
            return None
        record = _parse(digest, text(stored))
        return None if record.expired(store_clock.parse(*time).now_ms if now_ms is None else now_ms) else record

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

    def rotate(self, selector: str, *, overlap_ms: int, tenant: str | None = None) -> NewKey | None:
        """Create the successor of a key; the old key expires within `overlap_ms`. Return None if no valid key matches.

        The successor has the same tenant, label, `act_as` and lifetime as the old key. If several keys have the label
        because of earlier rotations, the newest one is rotated. Raises ConfigError for a key that was already rotated:
        its original lifetime is no longer known, and a successor would inherit the shortened lifetime.
        """
        check_span("overlap_ms", overlap_ms, min_ms=0)
        now_ms, found = self._find(selector, tenant)
        valid = [record for record in found if not record.expired(now_ms)]
        if not valid:
            return None
        not_rotated = [record for record in valid if not record.rotated]
        if not not_rotated:
            raise ConfigError(
                f"{selector!r} was rotated already; rotate its successor (`penstock keys ls`), or create a key"
            )
        old = not_rotated[-1]
        ends_ms = now_ms + overlap_ms
        ends_ms = ends_ms if old.expires_ms is None else min(ends_ms, old.expires_ms)
        retired = replace(old, expires_ms=ends_ms, rotated=True)
        expires_ms = None if old.expires_ms is None else now_ms + old.expires_ms - old.created_ms
        new = _new_key(replace(old, created_ms=now_ms, expires_ms=expires_ms))
        self._write("key.rotate", new.record, retired)
        return new

    def _write(self, what: str, changed: KeyRecord, *others: KeyRecord) -> None:
        """Store the records and, together with them, the record of the action on `changed`."""
        with store_faults(self._client), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(keys.keys(), mapping={one.digest: _dump(one) for one in (changed, *others)})
            add_record(pipe, self._actor, what, _describe(changed))
            pipe.execute()

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
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.keys())
            pipe.time()
            pipe.mget(keys.of_time())
            stored, *time = pipe.execute()
        return store_clock.parse(*time).now_ms, [_parse(text(digest), text(raw)) for digest, raw in stored.items()]


def _describe(key: KeyRecord) -> str:
    return f"key {key.id} of tenant {key.tenant}" + (f", {key.label!r}" if key.label else "")


def _new_key(record: KeyRecord) -> NewKey:
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return NewKey(key, replace(record, digest=digest_of(key)))


def check_span(name: str, span_ms: int | None, *, min_ms: int = 1) -> None:
    """Raise ConfigError, naming the value as `name`, if a lifetime is below `min_ms` or over ten years."""
    if span_ms is not None and not min_ms <= span_ms <= _MAX_SPAN_MS:
        raise ConfigError(f"{name}={span_ms} is out of range: {min_ms} to {_MAX_SPAN_MS} (ten years)")


def _dump(record: KeyRecord) -> str:
    fields = asdict(record)
    del fields["digest"]
    if not record.rotated:
        del fields["rotated"]
    return json.dumps(fields, ensure_ascii=False)


def _parse(digest: str, raw: str) -> KeyRecord:
    try:
        # Ignore unknown fields, which a newer version of Penstock may have written.
        known = {name: value for name, value in json.loads(raw).items() if name in KeyRecord.__dataclass_fields__}
        return KeyRecord(**(known | {"digest": digest}))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"the record of key {digest[:ID_DIGITS]} in {keys.keys()} cannot be parsed; "
            f"remove it with `penstock redis HDEL {keys.keys()} {digest}`"
        ) from None
