"""Makes a change of accounts in one cell and repeats it in all others, and remembers which cells have missed one.

The change is decided once, by the classes of shared/accounts in one cell. The records that it has changed are then
copied from there, so a new API key is the same in all cells. A cell that cannot be reached misses the change: each cell
that was reached notes its name (keys.missed_changes) until a door or `penstock cells sync` has copied the accounts. No
change is decided in a cell that lacks an earlier one, as long as another can be reached.

A note is the name of a cell. Before a change is made, the names of all other cells are noted with a time and a random
text behind them: if the process that makes it is killed, these notes stay.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import redis

from shared.accounts.admin_actions import Actor, record
from shared.accounts.changed_accounts import AccountChange, AccountKind, noted_changes
from shared.cells.account_records import Record, record_store
from shared.cells.accounts import copy_accounts
from shared.cells.stored import ask_all
from shared.errors import ConfigError, PenstockError, StoreUnavailable
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults

#: No change takes longer, in seconds, the difference of clocks included.
_LONGEST_CHANGE_S: Final = 120
#: How often the changed records are read again after they were copied.
_MOST_PASSES = 5
#: Records by kind and name; None if the account was removed.
_Records = Mapping[AccountKind, Mapping[str, Record | None]]


@dataclass
class CellChange:
    """One change of accounts, which is made in the cell of `client`."""

    #: The name of the cell in which the change is decided, and its client.
    cell: str
    client: redis.Redis
    #: When the change has ended: why each cell that has missed it could not be reached, by the cell's name.
    missed: dict[str, str] = field(default_factory=dict)

    def sentence(self) -> str:
        """Return a sentence that names the cells that have missed the change, and how to repair them."""
        cells = "; ".join(f"cell {name} has not got this change: {why}" for name, why in self.missed.items())
        if not cells:
            return ""
        again = f"when {'it answers' if len(self.missed) == 1 else 'they answer'} again"
        repair = f"Doors repair that {again}, and so does `penstock cells sync`"
        return f"{cells}. {repair}, unless cell {self.cell} lacks an earlier change itself (`penstock doctor`)"


class AccountCells:
    """The cells whose accounts must be equal.

    `clients` has a client of each, at least one, and `away` says why others are known not to answer. With one cell and
    none away, no command is sent beside those of the change.
    """

    def __init__(self, clients: Mapping[str, redis.Redis], away: Mapping[str, str] | None = None) -> None:
        #: By name, so that all processes decide changes in the same cell.
        self._clients = dict(sorted(clients.items()))
        self._away = dict(away or {})

    @contextmanager
    def changing(self) -> Iterator[CellChange]:
        """Let the block change accounts through the client that is given, and then repeat its changes in all cells.

        Changes that the block has made are repeated also if it raises an error. Raises StoreUnavailable if no cell
        answers; cells that do not answer later are in `CellChange.missed`.
        """
        if len(self._clients) == 1 and not self._away:
            ((cell, client),) = self._clients.items()
            yield CellChange(cell, client)
            return
        missed, away = self._read_missed()
        reached = [name for name in self._clients if name not in away]
        source = next((name for name in reached if name not in missed), reached[0])
        change = CellChange(source, self._clients[source])
        others = [name for name in (*self._clients, *self._away) if name != source]
        notes = [f"{name} {int(time.time())}-{secrets.token_hex(4)}" for name in others]
        self._note(source, partial(_add, notes))
        changes: Sequence[AccountChange] = ()
        try:
            with noted_changes() as changes:
                yield change
        finally:
            if changes:
                change.missed |= self._repeat(source, changes, others, away)
            for name in reached if change.missed else ():
                self._note(name, partial(_add, [one for one in change.missed if one != name]))
            self._note(source, partial(_remove, notes))

    def _repeat(
        self, source: str, changes: Sequence[AccountChange], others: Sequence[str], away: Mapping[str, str]
    ) -> dict[str, str]:
        """Copy what was changed to the other cells. Return those that have missed it, and why."""
        missed = {name: away[name] for name in others if name in away}
        written: _Records | None = None
        try:
            # Until the source has what was written last: another process may change the same records meanwhile.
            for _ in range(_MOST_PASSES):
                records = _read_changed(self._clients[source], changes)
                if records == written:
                    break
                for name in others:
                    if name not in missed and (why := _try_to_write(self._clients[name], records)):
                        missed[name] = why
                written = records
        except (StoreUnavailable, redis.ResponseError) as error:
            return missed | dict.fromkeys(others, f"cell {source} did not answer any more: {error}")
        for name in others:
            for change in changes if name not in missed else ():
                record(self._clients[name], change.actor, change.what, change.on)
        return missed

    def note_missed(self, cells: Sequence[str]) -> None:
        """Note in all others that these cells lack accounts, so that `repair` copies them."""
        for name in self._clients if cells else ():
            self._note(name, partial(_add, [one for one in cells if one != name]))

    def missed(self) -> frozenset[str]:
        """Return the cells that may lack a change which another cell has. Cells that do not answer are not asked."""
        return self._read_missed()[0]

    def sync(self, actor: Actor, source: str | None = None) -> dict[str, int]:
        """Copy the accounts of one cell to all others, and return how many records differed in each.

        By default the source is the first cell that has missed no change. Raises ConfigError if each has missed one, or
        if `source` is not a cell that answers, and StoreUnavailable if a cell stops answering.
        """
        missed, away = self._read_missed()
        reached = [name for name in self._clients if name not in away]
        if source is None:
            source = next((name for name in reached if name not in missed), None)
            if source is None:
                raise ConfigError(
                    f"each cell that answers ({', '.join(reached)}) has missed a change: name the one whose accounts "
                    "are to hold with `--from` (`penstock doctor` lists the differences)"
                )
        elif source not in reached:
            raise ConfigError(f"from={source!r} is not a cell that answers; these do: {', '.join(reached)}")
        copied = self._copy(source, [name for name in reached if name != source], actor)
        lacking = sorted(away) if any(copied.values()) else []
        for name in reached:
            self._note(name, partial(_settle, reached, [one for one in lacking if one != name]))
        return copied

    def repair(self, actor: Actor) -> dict[str, int]:
        """Copy the accounts of a cell that has missed no change to those that have; return how many records differed.

        Nothing is copied if each cell that answers has missed one: an operator must then decide which accounts hold.
        Changes that are being made are left alone. Raises StoreUnavailable.
        """
        if len(self._clients) < 2:
            return {}
        notes, away = self._read_notes()
        missed, ripe = {_cell_of(note) for note in notes}, {_cell_of(note) for note in notes if _is_ripe(note)}
        reached = [name for name in self._clients if name not in away]
        source = next((name for name in reached if name not in missed), None)
        lacking = [name for name in reached if name in ripe]
        if source is None or not lacking:
            return {}
        copied = self._copy(source, lacking, actor)
        for name in reached:
            self._note(name, partial(_remove, [note for note in notes if _is_ripe(note) and _cell_of(note) in lacking]))
        return copied

    def _copy(self, source: str, targets: Sequence[str], actor: Actor) -> dict[str, int]:
        """Copy all accounts of one cell to others, and record that. Return how many records differed in each."""
        copied = {}
        for name in targets:
            copied[name] = copy_accounts(self._clients[source], self._clients[name])
            if copied[name]:
                on = f"cell {name}: {copied[name]} account{'' if copied[name] == 1 else 's'} as in cell {source}"
                for cell in (source, name):
                    record(self._clients[cell], actor, "cells.sync", on)
        return copied

    def _read_missed(self) -> tuple[frozenset[str], dict[str, str]]:
        """Return the cells that a reachable one says have missed a change, and why the unreachable ones are so."""
        notes, away = self._read_notes()
        return frozenset(map(_cell_of, notes)), away

    def _read_notes(self) -> tuple[set[str], dict[str, str]]:
        """Return the notes of all cells, and why some do not answer. Raises StoreUnavailable if none answers."""
        asked = ask_all(self._clients, _read_notes)
        if not asked.answers:
            raise next(iter(asked.away.values()), StoreUnavailable("no cell answers"))
        notes = {note for found in asked.answers.values() for note in found}
        return notes, self._away | {name: str(error) for name, error in asked.away.items()}

    def _note(self, name: str, write: Callable[[redis.Redis], object]) -> None:
        """Change the notes of one cell. A store that is full takes none, but keys can still be removed from it."""
        client = self._clients[name]
        try:
            with store_faults(client):
                write(client)
        except StoreUnavailable:
            return


def _add(notes: Sequence[str], client: redis.Redis) -> None:
    if notes:
        client.sadd(keys.missed_changes(), *notes)


def _remove(notes: Sequence[str], client: redis.Redis) -> None:
    if notes:
        client.srem(keys.missed_changes(), *notes)


def _settle(equal: Sequence[str], lacking: Sequence[str], client: redis.Redis) -> None:
    """Remove the notes about cells that have equal accounts now, and add those about cells that lack them."""
    _remove([note for note in _read_notes(client) if _cell_of(note) in equal], client)
    _add(lacking, client)


def _cell_of(note: str) -> str:
    return note.partition(" ")[0]


def _is_ripe(note: str) -> bool:
    """Return whether a change has ended without its cell, or the process that makes it must have been killed."""
    noted_s = note.partition(" ")[2].partition("-")[0]
    return not noted_s.isdecimal() or abs(time.time() - int(noted_s)) > _LONGEST_CHANGE_S


def _read_notes(client: redis.Redis) -> set[str]:
    with store_faults(client):
        # A value of another program is removed: it would stop every change.
        if text(client.type(keys.missed_changes())) not in {"set", "none"}:
            client.unlink(keys.missed_changes())
        found: Any = client.smembers(keys.missed_changes())
    return {text(raw) for raw in found}


def _read_changed(source: redis.Redis, changes: Sequence[AccountChange]) -> _Records:
    names: dict[AccountKind, list[str]] = {}
    for change in changes:
        names.setdefault(change.kind, []).extend(change.names)
    return {kind: record_store(source, kind).texts(names[kind]) for kind in AccountKind if kind in names}


def _try_to_write(target: redis.Redis, records: _Records) -> str:
    """Write the changed records. Return why that has failed, or ""."""
    try:
        for kind, by_name in records.items():
            for name, one in by_name.items():
                record_store(target, kind).put_texts(name, one)
    except (PenstockError, redis.ResponseError) as error:
        return str(error)
    return ""
