"""The records of keys in the store, by the SHA-256 digests of the keys: those of API keys, and those of admin keys."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import redis
from redis.client import Pipeline

from shared.accounts.admin_actions import Actor, add_record, local_actor, record
from shared.accounts.changed_accounts import AccountChange, AccountKind, note_change
from shared.accounts.read_with_clock import read_with_time
from shared.errors import ConfigError
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The number of hex digits of the digest that lists show as a key's id.
ID_DIGITS = 12
#: The smallest number of digits of an id that selects a key. With fewer digits, a mistyped id could match another key.
_MIN_ID_DIGITS = 6
#: About how many records one command reads, so that it does not hold up the store.
_READ_TOGETHER = 1_000
#: Ten years, in ms; a longer lifetime is assumed to be a typo.
_MAX_SPAN_MS = 10 * 366 * 86_400_000


class StoredKey:
    """The stored record of a key. The key itself is not stored."""

    #: SHA-256 of the key, in hex.
    digest: str
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


_Record = TypeVar("_Record", bound=StoredKey)


class StoredKeys(Generic[_Record]):
    """All keys of one kind. Methods raise ConfigError for invalid values, and StoreUnavailable as in Store."""

    #: The kind is the name of a key in messages, and the beginning of the names of actions.
    kind: AccountKind
    #: The field of a record that selects keys, beside the id.
    name_field: str
    #: The hash with the records, by their digests.
    hash_key: str

    def __init__(self, client: redis.Redis, actor: Actor | None = None) -> None:
        self._client = client
        #: The changes that these methods make are recorded as this actor's.
        self._actor = actor or local_actor()

    def _parse(self, digest: str, raw: str) -> _Record:
        """Return a record. If it is spoiled, raises one of the errors that `parse` catches."""
        raise NotImplementedError

    def _dump(self, one: _Record) -> str:
        """Return the record as it is stored, without the digest, which is its field in the hash."""
        raise NotImplementedError

    def _describe(self, one: _Record) -> str:
        """Return the key and its owner for the record of an action."""
        raise NotImplementedError

    def parse(self, digest: str, raw: bytes) -> _Record:
        """Return the record that `raw` represents. Raises ConfigError, which says how to remove a spoiled record."""
        try:
            return self._parse(digest, text(raw))
        except (ConfigError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(
                f"the record of {self.kind} {digest[:ID_DIGITS]} in {self.hash_key} cannot be parsed; "
                f"remove it with `penstock redis HDEL {self.hash_key} {digest}`"
            ) from None

    def find(self, digest: str, now_ms: int | None = None) -> _Record | None:
        """Return the record of the key with this digest, or None if it is unknown or has expired.

        Expiry is checked at `now_ms` or, if that is None, by the store's TIME.
        """
        stored, store_ms = read_with_time(self._client, lambda pipe: pipe.hget(self.hash_key, digest))
        found = None if stored is None else self.parse(digest, stored)
        return None if found is None or found.expired(store_ms if now_ms is None else now_ms) else found

    def _read(self, wanted: Callable[[_Record], bool] = lambda _: True) -> tuple[int, tuple[_Record, ...]]:
        """Return (the store's TIME in ms, the records of the wanted keys, the oldest first), expired ones included.

        Records are read in parts. A key that is created or removed meanwhile may be in the answer or not.
        """
        found: dict[str, _Record] = {}
        cursor = 0
        while True:
            scan = partial(redis.Redis.hscan, name=self.hash_key, cursor=cursor, count=_READ_TOGETHER)
            (cursor, page), now_ms = read_with_time(self._client, scan)
            parsed = (self.parse(text(digest), raw) for digest, raw in page.items())
            found.update((one.digest, one) for one in parsed if wanted(one))
            if cursor == 0:
                return now_ms, tuple(sorted(found.values(), key=lambda one: (one.created_ms, one.digest)))

    def _to_drop(self, existing: Sequence[_Record], now_ms: int, most: int, owner: str) -> Sequence[_Record]:
        """Return the oldest expired ones of an owner's keys that a new key replaces, so that there are at most `most`.

        Raises ConfigError if too few have expired. `owner` begins the message.
        """
        excess = len(existing) + 1 - most
        expired = [one for one in existing if one.expired(now_ms)]
        if excess > len(expired):
            number = len(existing) - len(expired)
            raise ConfigError(f"{owner} {number} {self.kind}s, and at most {most} are possible; remove one first")
        return expired[: max(0, excess)]

    def _select(self, selector: str, named: Sequence[_Record], records: Sequence[_Record]) -> tuple[_Record, ...]:
        """Return the record whose digest starts with `selector`, or those in `named`, which have it as a name or label.

        At least a whole id selects by the digest alone. Raises ConfigError if a shorter text is the name of one key
        and the beginning of another one's id, or if several digests start with it.
        """
        if not re.fullmatch(rf"[0-9a-f]{{{_MIN_ID_DIGITS},64}}", selector):
            return tuple(named)
        found = tuple(one for one in records if one.digest.startswith(selector))
        if named and len(selector) < ID_DIGITS:
            others = sorted({one.id for one in found} - {one.id for one in named})
            if others:
                ids = ", ".join(sorted(one.id for one in named))
                raise ConfigError(
                    f"{selector!r} is the {self.name_field} of {self.kind} {ids} and begins the id of {self.kind} "
                    f"{', '.join(others)}; name the one that you mean by its whole id"
                )
            return tuple(named)
        if len(found) > 1:
            raise ConfigError(f"{selector!r} matches the digests of {len(found)} {self.kind}s; give more digits")
        return found or tuple(named)

    def _remove(self, found: Sequence[_Record]) -> None:
        if found:
            with store_faults(self._client):
                self._client.hdel(self.hash_key, *(one.digest for one in found))
        for one in found:
            record(self._client, self._actor, self._removal, self._describe(one))
            self._note(self._removal, one, [one])

    def _write(self, action: str, plan: Callable[[], tuple[Sequence[_Record], Sequence[_Record]]]) -> None:
        """Store the first records that `plan` returns, if any, and remove the second ones.

        The action on the first record and the removals are recorded with them. `plan` reads the keys. It is called
        again if another process changes one before the records are stored, so that no change is lost, and no removed
        key comes back.
        """
        written: list[tuple[Sequence[_Record], Sequence[_Record]]] = []

        def write(pipe: Pipeline) -> None:
            planned, dropped = plan()
            written[:] = [(planned, dropped)]
            pipe.multi()
            if planned:
                pipe.hset(self.hash_key, mapping={one.digest: self._dump(one) for one in planned})
                add_record(pipe, self._actor, action, self._describe(planned[0]))
            for one in dropped:
                pipe.hdel(self.hash_key, one.digest)
                add_record(pipe, self._actor, self._removal, self._describe(one))

        with store_faults(self._client):
            self._client.transaction(write, self.hash_key)
        for planned, dropped in written:
            if planned:
                self._note(action, planned[0], planned)
            for one in dropped:
                self._note(self._removal, one, [one])

    def _note(self, what: str, described: _Record, changed: Sequence[_Record]) -> None:
        digests = tuple(one.digest for one in changed)
        note_change(AccountChange(self.kind, digests, self._actor, what, self._describe(described)))

    @property
    def _removal(self) -> str:
        return f"{self.kind.replace(' ', '_')}.rm"

    def find_unreadable(self) -> list[str]:
        """Return a sentence about each record that another program has spoiled, so that its key is not accepted."""
        with store_faults(self._client):
            stored_type = text(self._client.type(self.hash_key))
            pages = self._client.hscan_iter(self.hash_key, count=_READ_TOGETHER) if stored_type == "hash" else ()
            stored = dict(pages)
        if stored_type not in {"hash", "none"}:
            return [f"{self.hash_key} is a {stored_type} and not a hash, so none of its keys is accepted"]
        problems = []
        for digest, raw in stored.items():
            try:
                self.parse(text(digest), raw)
            except ConfigError as error:
                problems.append(str(error))
        return problems


def check_span(name: str, span_ms: int | None, *, min_ms: int = 1) -> None:
    """Raise ConfigError, naming the value as `name`, if a lifetime is below `min_ms` or over ten years."""
    if span_ms is not None and not min_ms <= span_ms <= _MAX_SPAN_MS:
        raise ConfigError(f"{name}={span_ms} is out of range: {min_ms} to {_MAX_SPAN_MS} (ten years)")
