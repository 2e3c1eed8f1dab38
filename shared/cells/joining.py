"""Adds a cell to the directory: checks its store, copies the accounts into it, and only then lists it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from shared.accounts.admin_actions import Actor
from shared.accounts.changed_accounts import AccountKind
from shared.cells.account_changes import AccountCells
from shared.cells.account_records import record_store
from shared.cells.accounts import copy_accounts, describe_account
from shared.cells.directory import CellRecord, Directory
from shared.cells.edits import with_new_cell
from shared.cells.opening import Cells
from shared.cells.stored import Changed, StoredDirectory, change
from shared.errors import ConfigError, StoreUnavailable
from shared.settings.settings import SYSTEM_WIDE
from shared.store import keys
from shared.store.clients.key_prefix import prefix_of
from shared.store.decode import text
from shared.store.preflight import check_fitness, check_format, find_write_fault, require_answer
from shared.store.redis_errors import store_faults

#: How many accounts an error names.
_MAX_NAMED = 3


@dataclass(frozen=True)
class Joined:
    """The result of adding a cell: the change, how many accounts were copied, and what its store should have."""

    changed: Changed
    copied: int
    warnings: tuple[str, ...]


def join(
    cells: Cells, record: CellRecord, client: redis.Redis, *, default: CellRecord, actor: Actor, replaces: bool = False
) -> Joined:
    """Add the cell whose store `client` reaches; with `replaces`, give a cell of the directory another record.

    `default` is the store in force, which is entered with the first other cell. Raises ConfigError if the store cannot
    be a cell of this deployment, StoreUnfit if it could lose jobs, and StoreUnavailable if it, or all cells, are away.
    """
    # Refuses a name or a place that is taken, before anything is written.
    with_new_cell(cells.directory, record, default=default, at_ms=0, replaces=replaces)
    source = _source(cells, record.name)
    present = cells.directory.cells.get(record.name) if cells.directory else None
    is_known = present is not None and (present.url, present.prefix) == (record.url, record.prefix)
    warnings = _check_store(record, client, source, cells)
    if not is_known:
        _check_content(record.name, client, source, cells.directory, may_have_jobs=replaces)
    copied = copy_accounts(source, client)
    changed = change(
        {**cells.answering, record.name: client},
        lambda found, at_ms: with_new_cell(found, record, default=default, at_ms=at_ms, replaces=replaces),
        actor=actor,
        what="cell.set" if replaces else "cell.add",
        on=f"cell {record.name}",
    )
    # Accounts may have changed since the first copy. From now on, changes reach this cell too.
    copy_accounts(source, client)
    return Joined(changed, copied, tuple(warnings))


def _source(cells: Cells, name: str) -> redis.Redis:
    """Return a cell that has all accounts."""
    others = {other: client for other, client in cells.answering.items() if other != name}
    if not others:
        raise StoreUnavailable("no other cell answers, whose accounts this cell needs")
    missed = AccountCells(others).missed()
    found = next((client for other, client in sorted(others.items()) if other not in missed), None)
    if found is None:
        raise ConfigError("each cell that answers has missed a change: first `penstock cells sync --from CELL`")
    return found


def _check_store(record: CellRecord, client: redis.Redis, source: redis.Redis, cells: Cells) -> list[str]:
    """Return the warnings of a store's fitness. Raises as `join` does."""
    try:
        require_answer(client, record.url)
    except StoreUnavailable as error:
        raise StoreUnavailable(f"cell {record.name!r}: {error}", error.fault) from None
    warnings = check_fitness(client)
    check_format(client)
    if fault := find_write_fault(client):
        raise StoreUnavailable(f"the store of cell {record.name!r} {fault.says}", fault)
    mine = _identity(client)
    for other, one in cells.answering.items():
        if other != record.name and _identity(one) == mine:
            raise ConfigError(f"url and prefix of cell {record.name!r} lead to cell {other!r}: give it another prefix")
    _check_settings(record.name, client, source)
    return warnings


def _check_content(
    name: str, client: redis.Redis, source: redis.Redis, directory: Directory | None, *, may_have_jobs: bool
) -> None:
    """Raise ConfigError if the store belongs to another deployment."""
    with store_faults(client):
        jobs: Any = client.zcard(keys.inflight())
    reasons = [f"has {jobs} jobs of another deployment"] if jobs and not may_have_jobs else []
    reasons += [*_other_directory(client, directory), *_other_accounts(client, source)]
    if reasons:
        raise ConfigError(f"the store of cell {name!r} {reasons[0]}")


def _identity(client: redis.Redis) -> tuple[str, int, str]:
    """Return what two clients of one cell have in common: the run of the server, the database and the prefix."""
    with store_faults(client):
        info: Any = client.info("server")
    return str(info.get("run_id", "")), int(client.connection_pool.connection_kwargs.get("db") or 0), prefix_of(client)


def _other_directory(client: redis.Redis, own: Directory | None) -> Iterator[str]:
    """Yield a sentence if the store belongs to another deployment with cells."""
    found = StoredDirectory(client).read()
    if found is not None and (own is None or own.cells.keys().isdisjoint(found.cells) or found.stamp > own.stamp):
        yield f"has a directory of cells already ({', '.join(sorted(found.cells)[:_MAX_NAMED])}…)"


def _other_accounts(client: redis.Redis, source: redis.Redis) -> Iterator[str]:
    """Yield a sentence for each kind of accounts that are in the store and not in this deployment."""
    for kind in AccountKind:
        known = set(record_store(source, kind).names())
        unknown = [name for name in record_store(client, kind).names() if name not in known]
        if unknown:
            named = ", ".join(describe_account(kind, name) for name in unknown[:_MAX_NAMED])
            yield f"has accounts that this deployment lacks, which would be removed: {named}; empty it before"


def _check_settings(name: str, client: redis.Redis, source: redis.Redis) -> None:
    own, wanted = _settings(client), _settings(source)
    different = [
        f"{field} is {value!r}, and {wanted[field]!r} in the others"
        for field, value in own.items()
        if wanted.get(field, value) != value
    ]
    if different:
        raise ConfigError(f"cell {name!r} has other system-wide settings: {', '.join(different)}")


def _settings(client: redis.Redis) -> Mapping[str, str]:
    with store_faults(client):
        values: Any = client.hmget(keys.config(), list(SYSTEM_WIDE))
    return {name: text(value) for name, value in zip(SYSTEM_WIDE, values, strict=True) if value is not None}
