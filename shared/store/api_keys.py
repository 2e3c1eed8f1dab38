"""API keys: made here and shown once, kept as SHA-256 digests, looked up by the door.

A key is 256 random bits, so a plain digest is as good as a slow one: there is nothing to guess. The door
looks the digest up in a hash table and never compares the key itself; how long that takes may tell of
the digest, which a caller cannot choose without inverting SHA-256, so no part of a key can be probed by time.
"""

import fnmatch
import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

import redis

from shared.errors import ConfigError
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from shared.store.tenants import check_name

#: Makes a key recognisable to people and to scanners for leaked secrets.
KEY_PREFIX = "psk_"
#: Hex digits of the digest that name a key in lists and to `rm`; fewer than six would be guessed wrong.
ID_DIGITS, LEAST_ID_DIGITS = 12, 6

_LABEL = re.compile(r"[^\s]([^\n\r\t]{0,62}[^\s])?\Z")
_GLOB = re.compile(r"[A-Za-z0-9_*?!\[\]-]{1,128}\Z")
#: Ten years, in ms: a longer life is a typing error.
_LONGEST_MS = 10 * 366 * 86_400_000


@dataclass(frozen=True)
class KeyFacts:
    """What is known of a key; the key itself is not."""

    #: SHA-256 of the key, in hex.
    digest: str
    tenant: str
    label: str
    #: Wall ms by the store's TIME; expires_ms None: never.
    created_ms: int
    expires_ms: int | None = None
    #: Pattern of other tenants that a request with this key may name in X-Tenant; None: none.
    act_as: str | None = None
    #: Whether it has a successor, and lives for the overlap alone.
    rotated: bool = False

    @property
    def id(self) -> str:
        """The digest's first digits, by which people name the key."""
        return self.digest[:ID_DIGITS]

    def expired(self, now_ms: int) -> bool:
        """Whether the key opens nothing any more at this moment of the store's TIME."""
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def may_act_as(self, tenant: str) -> bool:
        """Whether a request with this key may be made for `tenant`."""
        return tenant == self.tenant or (self.act_as is not None and fnmatch.fnmatchcase(tenant, self.act_as))


@dataclass(frozen=True)
class NewKey:
    """A key at the only moment it is known."""

    key: str
    facts: KeyFacts


def digest_of(key: str) -> str:
    """SHA-256 of a key, in hex: the only form in which it is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


class ApiKeys:
    """All keys of the store. Raises ConfigError for values that cannot be, StoreUnavailable when it is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def create(
        self, tenant: str, *, label: str = "", expires_in_ms: int | None = None, act_as: str | None = None
    ) -> NewKey:
        """Make a key for a tenant. A label is used once among a tenant's living keys; it may be empty."""
        check_name(tenant)
        if label and not _LABEL.match(label):
            raise ConfigError(f"label={label!r} is not 1 to 64 characters on one line, without spaces at its ends")
        if act_as is not None and not _GLOB.match(act_as):
            raise ConfigError(f"act_as={act_as!r} is no pattern of tenants: letters, digits, '_', '-', '*', '?', '[…]'")
        _check_span("expires_in_ms", expires_in_ms)
        now_ms, ring = self._read()
        if label and any(
            facts.tenant == tenant and facts.label == label and not facts.expired(now_ms) for facts in ring
        ):
            raise ConfigError(
                f"tenant {tenant!r} already has a key with label={label!r}; rotate it, or remove it first"
            )
        expires_ms = None if expires_in_ms is None else now_ms + expires_in_ms
        new = _mint(KeyFacts("", tenant, label, now_ms, expires_ms, act_as))
        with store_faults(self._client):
            self._client.hset(keys.keys(), new.facts.digest, _dump(new.facts))
        return new

    def lookup(self, key: str, now_ms: int | None = None) -> KeyFacts | None:
        """Whom this key stands for, or None when it is unknown or has expired.

        The moment is the store's TIME, asked in the same round trip, unless the caller has just learnt it.
        """
        return self.find(digest_of(key), now_ms)

    def find(self, digest: str, now_ms: int | None = None) -> KeyFacts | None:
        """What `lookup` answers, by the key's digest."""
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.hget(keys.keys(), digest)
            if now_ms is None:
                _ask_time(pipe)
            held, *time = pipe.execute()
        if held is None:
            return None
        facts = _parse(digest, text(held))
        return None if facts.expired(_now_ms(*time) if now_ms is None else now_ms) else facts

    def ls(self, tenant: str | None = None) -> tuple[int, tuple[KeyFacts, ...]]:
        """Now by the store's TIME, and all keys (or a tenant's), oldest first; expired ones too."""
        now_ms, ring = self._read()
        chosen = [facts for facts in ring if tenant is None or facts.tenant == check_name(tenant)]
        return now_ms, tuple(sorted(chosen, key=lambda facts: (facts.created_ms, facts.digest)))

    def rm(self, which: str, *, tenant: str | None = None) -> tuple[KeyFacts, ...]:
        """Remove the key with this beginning of its digest, or every key of a tenant with this label.

        Answers what was removed, nothing when there is none. Raises ConfigError when `which` fits several tenants.
        """
        found = self._find(which, tenant)[1]
        if found:
            with store_faults(self._client):
                self._client.hdel(keys.keys(), *(facts.digest for facts in found))
        return found

    def rotate(self, which: str, *, overlap_ms: int, tenant: str | None = None) -> NewKey | None:
        """Make the key's successor and let the old one live for `overlap_ms` more; None when there is none.

        The successor has the same tenant, label, `act_as` and span of life. Of several keys with one label
        (earlier rotations) the newest is followed. Raises ConfigError for a key that has a successor: what it was
        made for is no longer known, and its next of kin would end with it.
        """
        _check_span("overlap_ms", overlap_ms, least=0)
        now_ms, found = self._find(which, tenant)
        living = [facts for facts in found if not facts.expired(now_ms)]
        if not living:
            return None
        newest = [facts for facts in living if not facts.rotated]
        if not newest:
            raise ConfigError(
                f"{which!r} was rotated already; rotate its successor (`penstock keys ls`), or make a key"
            )
        old = newest[-1]
        ends_ms = now_ms + overlap_ms
        ends_ms = ends_ms if old.expires_ms is None else min(ends_ms, old.expires_ms)
        retired = replace(old, expires_ms=ends_ms, rotated=True)
        expires_ms = None if old.expires_ms is None else now_ms + old.expires_ms - old.created_ms
        new = _mint(replace(old, created_ms=now_ms, expires_ms=expires_ms))
        with store_faults(self._client):
            self._client.hset(keys.keys(), mapping={new.facts.digest: _dump(new.facts), retired.digest: _dump(retired)})
        return new

    def _find(self, which: str, tenant: str | None) -> tuple[int, tuple[KeyFacts, ...]]:
        now_ms, ring = self.ls(tenant)
        by_label = tuple(facts for facts in ring if which and facts.label == which)
        if len({facts.tenant for facts in by_label}) > 1:
            owners = ", ".join(sorted({facts.tenant for facts in by_label}))
            raise ConfigError(f"label={which!r} belongs to keys of several tenants ({owners}); name one with --tenant")
        if by_label:
            return now_ms, by_label
        if not re.fullmatch(rf"[0-9a-f]{{{LEAST_ID_DIGITS},64}}", which):
            return now_ms, ()
        by_digest = tuple(facts for facts in ring if facts.digest.startswith(which))
        if len(by_digest) > 1:
            raise ConfigError(f"{which!r} is the beginning of {len(by_digest)} keys; give more digits")
        return now_ms, by_digest

    def _read(self) -> tuple[int, list[KeyFacts]]:
        with store_faults(self._client), self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.keys())
            _ask_time(pipe)
            held, *time = pipe.execute()
        return _now_ms(*time), [_parse(text(digest), text(record)) for digest, record in held.items()]


def _ask_time(pipe: Any) -> None:
    pipe.time()
    pipe.get(keys.clock())


def _now_ms(time: tuple[int, int], clock: bytes | None) -> int:
    """The store's TIME, shifted or held as shared/lua/lib/clock.lua does."""
    held = text(clock or b"0")
    return int(held[1:]) if held.startswith("=") else time[0] * 1000 + time[1] // 1000 + int(held)


def _mint(facts: KeyFacts) -> NewKey:
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return NewKey(key, replace(facts, digest=digest_of(key)))


def _check_span(name: str, span_ms: int | None, *, least: int = 1) -> None:
    if span_ms is not None and not least <= span_ms <= _LONGEST_MS:
        raise ConfigError(f"{name}={span_ms} is out of range: {least} to {_LONGEST_MS} (ten years)")


def _dump(facts: KeyFacts) -> str:
    record = asdict(facts)
    del record["digest"]
    if not facts.rotated:
        del record["rotated"]
    return json.dumps(record, ensure_ascii=False)


def _parse(digest: str, record: str) -> KeyFacts:
    try:
        # What a newer Penstock may know beside these is not ours to judge.
        known = {name: value for name, value in json.loads(record).items() if name in KeyFacts.__dataclass_fields__}
        return KeyFacts(**(known | {"digest": digest}))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"the record of key {digest[:ID_DIGITS]} in {keys.keys()} is not readable; "
            f"remove it with `penstock redis HDEL {keys.keys()} {digest}`"
        ) from None
