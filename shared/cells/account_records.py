"""Reads and writes accounts as they are stored, so that one cell's can be compared with another's and copied to it.

A record is the text fields of one account. Its state (counts of budgets, rates, services) is not among them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import redis

from shared.accounts.changed_accounts import AccountKind
from shared.accounts.groups import Groups
from shared.accounts.routes import Pools
from shared.accounts.tenants import Tenants
from shared.errors import ConfigError
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The fields of one account by their names. In kinds that store one text for each account, the name is "".
Record = Mapping[str, str]
#: About how many records are read or written in one round trip.
_TOGETHER = 1_000


class RecordStore(Protocol):
    """All accounts of one kind in one cell. Methods raise StoreUnavailable, and ConfigError for an invalid name."""

    def names(self) -> list[str]: ...

    def texts(self, names: Iterable[str]) -> dict[str, dict[str, str] | None]:
        """Return the record of each name; None if there is no such account. Unreadable ones are left out."""

    def put_texts(self, name: str, texts: Record | None) -> None:
        """Write a record that `texts` has returned, or remove it. Records no action."""


class _HashStore:
    """The accounts of a kind that has all its records in one hash."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client, self._key = client, key

    def names(self) -> list[str]:
        with store_faults(self._client):
            kind = text(self._client.type(self._key))
            if kind not in {"hash", "none"}:
                raise ConfigError(f"{self._key} is a {kind} and no hash: another program has replaced it")
            return sorted({text(name) for name, _ in self._client.hscan_iter(self._key, count=_TOGETHER)})

    def texts(self, names: Iterable[str]) -> dict[str, dict[str, str] | None]:
        asked, found = list(names), dict[str, dict[str, str] | None]()
        for start in range(0, len(asked), _TOGETHER):
            part = asked[start : start + _TOGETHER]
            with store_faults(self._client):
                values: Any = self._client.hmget(self._key, part)
            for name, value in zip(part, values, strict=True):
                found[name] = None if value is None else {"": text(value)}
        return found

    def put_texts(self, name: str, texts: Record | None) -> None:
        with store_faults(self._client):
            if texts is None:
                self._client.hdel(self._key, name)
            else:
                self._client.hset(self._key, name, texts[""])


#: The classes of the kinds that know their records themselves, and the hashes of the others.
_CLASSES: Mapping[AccountKind, Callable[[redis.Redis], RecordStore]] = {
    AccountKind.GROUP: Groups,
    AccountKind.TENANT: Tenants,
    AccountKind.POOL: Pools,
}
_HASHES = {
    AccountKind.WEBHOOKS: keys.webhook_secrets(),
    AccountKind.KEY: keys.keys(),
    AccountKind.ADMIN_KEY: keys.admin_keys(),
    AccountKind.ROUTE: keys.routes(),
}


def record_store(client: redis.Redis, kind: AccountKind) -> RecordStore:
    """Return the accounts of one kind in the cell of this client."""
    return _CLASSES[kind](client) if kind in _CLASSES else _HashStore(client, _HASHES[kind])


def read_all(client: redis.Redis, kind: AccountKind) -> tuple[dict[str, Record], list[str]]:
    """Return all records of one kind by their names, and a sentence about each that another program has replaced."""
    store = record_store(client, kind)
    try:
        names = store.names()
    except ConfigError as error:
        return {}, [str(error)]
    found = store.texts(names)
    spoiled = [f"the record of {kind} {name!r} was replaced by another program" for name in names if name not in found]
    return {name: record for name, record in found.items() if record is not None}, spoiled
