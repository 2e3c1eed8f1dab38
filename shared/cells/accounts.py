"""Compares the accounts of cells, and copies those of one cell to another.

Accounts are what an operator has configured: policies of tenants and groups, API keys, admin keys, routes, the terms of
pools, the secrets of webhooks, and the system-wide settings. They are equal in all cells. Usage, the counts of budgets
and jobs belong to one cell, and are not copied.
"""

from collections.abc import Iterator, Mapping

import redis

from shared.accounts.changed_accounts import AccountKind
from shared.accounts.stored_keys import ID_DIGITS
from shared.cells.account_records import Record, read_all, record_store
from shared.errors import ConfigError
from shared.settings.settings import SYSTEM_WIDE
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: The most sentences about differences.
MAX_DIFFERENCES = 20
#: The longest value that a sentence quotes, in characters.
_MAX_VALUE = 60
#: How often records are compared once more after a copy.
_MOST_PASSES = 5
#: The fields of keys.config that a process reads before it works on a store: its format and the system-wide settings.
_SYSTEM_FIELDS = ("schema", "schema_oldest", *SYSTEM_WIDE)


def copy_accounts(source: redis.Redis, target: redis.Redis) -> int:
    """Give the cell of `target` the accounts of that of `source`, and no others. Return how many records differed.

    A system-wide setting is copied only if the target has none, because running processes have been started with it.
    Raises StoreUnavailable, and ConfigError if the source has accounts that another program has replaced; both leave a
    part copied.
    """
    differed = _copy_system(source, target) + _copy_records(source, target)
    if differed:
        # A change that was made meanwhile may have been undone in the target.
        for _ in range(_MOST_PASSES):
            if not _copy_records(source, target):
                break
    return differed


def _copy_records(source: redis.Redis, target: redis.Redis) -> int:
    differed = 0
    removed: list[tuple[AccountKind, str]] = []
    for kind in AccountKind:
        wanted, spoiled = read_all(source, kind)
        if spoiled:
            raise ConfigError(f"the accounts cannot be copied: {spoiled[0]} (`penstock doctor`)")
        present, store = read_all(target, kind)[0], record_store(target, kind)
        for name, one in wanted.items():
            if present.get(name) != one:
                store.put_texts(name, one)
                differed += 1
        removed += [(kind, name) for name in present if name not in wanted]
    # A group is removed after its tenants.
    for kind, name in reversed(removed):
        record_store(target, kind).put_texts(name, None)
    return differed + len(removed)


def _copy_system(source: redis.Redis, target: redis.Redis) -> int:
    wanted, present = _system(source), _system(target)
    missing = {name: value for name, value in wanted.items() if name not in present}
    with store_faults(target), target.pipeline(transaction=True) as pipe:
        for name, value in missing.items():
            pipe.hsetnx(keys.config(), name, value)
        pipe.execute()
    return int(bool(missing))


def _system(client: redis.Redis) -> dict[str, str]:
    with store_faults(client):
        values = client.hmget(keys.config(), list(_SYSTEM_FIELDS))
    return {name: text(value) for name, value in zip(_SYSTEM_FIELDS, values, strict=True) if value is not None}


def differences(clients: Mapping[str, redis.Redis], *, most: int = MAX_DIFFERENCES) -> list[str]:
    """Return a sentence for each account that a cell has otherwise than the first one, and one for those left out.

    `clients` has the cells that answer, by name. Raises StoreUnavailable.
    """
    found: list[str] = []
    left_out = 0
    for sentence in _differences(clients):
        if len(found) < most:
            found.append(sentence)
        else:
            left_out += 1
    return [*found, f"{left_out} more accounts differ"] if left_out else found


def _differences(clients: Mapping[str, redis.Redis]) -> Iterator[str]:
    first, *others = clients
    system = _system(clients[first])
    for other in others:
        present = _system(clients[other])
        for name in SYSTEM_WIDE:
            yield from _compare(f"the system-wide setting {name}", first, system.get(name), other, present.get(name))
    for kind in AccountKind:
        wanted, spoiled = read_all(clients[first], kind)
        yield from (f"in cell {first}, {problem}" for problem in spoiled)
        for other in others:
            found, spoiled = read_all(clients[other], kind)
            yield from (f"in cell {other}, {problem}" for problem in spoiled)
            for name in sorted({*wanted, *found}):
                what = describe_account(kind, name)
                yield from _compare_records(what, first, wanted.get(name), other, found.get(name))


def _compare(what: str, first: str, wanted: str | None, other: str, present: str | None) -> Iterator[str]:
    if wanted != present:
        yield f"{what} is {_shown(wanted)} in cell {first} and {_shown(present)} in cell {other}"


def _compare_records(what: str, first: str, wanted: Record | None, other: str, present: Record | None) -> Iterator[str]:
    if wanted is None or present is None:
        has, lacks = (first, other) if present is None else (other, first)
        if wanted is not present:
            yield f"{what} is in cell {has} and not in cell {lacks}"
    elif wanted != present:
        # The records of keys, routes and secrets are one text, which a sentence does not quote.
        fields = sorted(name for name in {*wanted, *present} if name and wanted.get(name) != present.get(name))
        details = ", ".join(f"{name} {_shown(wanted.get(name))} and {_shown(present.get(name))}" for name in fields)
        yield f"{what} differs between cell {first} and cell {other}" + (f": {details}" if details else "")


def _shown(value: str | None) -> str:
    if value is None:
        return "not set"
    return value if len(value) <= _MAX_VALUE else f"({len(value)} characters)"


def describe_account(kind: AccountKind, name: str) -> str:
    """Return an account's kind and name in a sentence; of a key the id, and of a secret only its tenant."""
    match kind:
        case AccountKind.TENANT | AccountKind.GROUP:
            return f"the policy of {kind} {name!r}"
        case AccountKind.KEY | AccountKind.ADMIN_KEY:
            return f"{kind} {name[:ID_DIGITS]}"
        case AccountKind.WEBHOOKS:
            return f"the webhook secret of tenant {name!r}"
        case _:
            return f"{kind} {name[:200]!r}"
