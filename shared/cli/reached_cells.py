"""The cells that a command reads or changes: all of the directory, or one; without a directory the store in force.

Without a directory, every command prints what it would print if there were no cells. With one, each row and each note
names its cell, and a cell that does not answer is named on stderr and makes the exit code 1.
"""

import json as json_library
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import FAULT
from shared.errors import ConfigError
from shared.settings.settings import Settings, load

if TYPE_CHECKING:
    import redis

    from shared.cells.directory import Directory

CellName = Annotated[
    str | None,
    typer.Option("--cell", metavar="NAME", help="Only this cell (`penstock cells ls`); by default all cells."),
]
#: How many characters of an error of a cell are shown.
_MAX_WHY = 300


@dataclass(frozen=True)
class ReachedCells:
    """Clients of the cells that answer, by name."""

    clients: Mapping[str, "redis.Redis"]
    #: Why the others do not answer.
    away: Mapping[str, str]
    #: None without a directory; the output then names no cell.
    directory: "Directory | None"

    @property
    def named(self) -> bool:
        """Whether the output names cells."""
        return self.directory is not None

    def columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of a table whose rows `rows` returns."""
        return ("cell", *columns) if self.named else tuple(columns)

    def row(self, cell: str, cells: Iterable[object]) -> tuple[object, ...]:
        """Return a row of a table, which begins with the name of its cell if the output names cells."""
        return (cell, *cells) if self.named else tuple(cells)

    def as_dict(self, cell: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a JSON object, which has the name of its cell if the output names cells."""
        return {"cell": cell, **fields} if self.named else dict(fields)

    def names(self, names: Sequence[str]) -> str:
        """Return `all` if these are all cells of the directory, else their names."""
        everywhere = self.directory is not None and set(names) == set(self.directory.cells)
        return "all" if everywhere else ", ".join(names)

    def note(self, cell: str, text: str) -> str:
        return f"cell {cell}: {text}" if self.named else text

    def settings(self, name: str, settings: Settings) -> Settings:
        """Return the settings of a process that serves one of these cells, from those in force."""
        from shared.cells.opening import settings_of_cell

        return settings if self.directory is None else settings_of_cell(settings, self.directory.cells[name])

    def note_away(self) -> None:
        """Name the cells that do not answer on stderr."""
        for name, why in self.away.items():
            output.write_note(f"cell {name} does not answer, and nothing here is about it: {why}")

    def report_away(self) -> None:
        """Name the cells that do not answer on stderr. Exit with FAULT if there is one."""
        self.note_away()
        if self.away:
            raise typer.Exit(FAULT)

    @contextmanager
    def changing_accounts(self) -> Iterator["redis.Redis"]:
        """Let the block change accounts through a client, and repeat the changes in all cells.

        Exit with FAULT after the block if a cell has missed a change, which is named on stderr.
        """
        from shared.cells.account_changes import AccountCells

        change = None
        try:
            with AccountCells(self.clients, self.away).changing() as change:
                yield change.client
        finally:
            if change is not None and change.missed:
                output.write_note(change.sentence())
        if change.missed:
            raise typer.Exit(FAULT)


def reach_cells(state_dir: str | None, only: str | None = None) -> ReachedCells:
    """Return clients of all cells of the deployment, or of `only` one.

    Raises ConfigError if there is no such cell, and StoreUnavailable if no cell answers, or not the one that was named.
    """
    from shared.cells.opening import cells_in_force

    cells = cells_in_force(load(state_dir=state_dir))
    if only is not None and only not in cells:
        raise _unknown_cell(only, cells)
    if only is not None and only in cells.away:
        raise cells.away[only]
    wanted = [name for name in sorted(cells) if only in {None, name}]
    away = {name: str(cells.away[name])[:_MAX_WHY] for name in wanted if name in cells.away}
    return ReachedCells({name: cells[name] for name in wanted if name not in away}, away, cells.directory)


def settings_of_named_cell(settings: Settings, name: str) -> Settings:
    """Return the settings of a process that serves one cell.

    Raises ConfigError if there is no such cell, and StoreUnavailable if the directory cannot be read.
    """
    from shared.cells.opening import cells_in_force, settings_of_cell

    cells = cells_in_force(settings)
    if name not in cells:
        raise _unknown_cell(name, cells)
    return settings if cells.directory is None else settings_of_cell(settings, cells.directory.cells[name])


def _unknown_cell(name: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(f"cell={name!r} is not a cell; these are: {', '.join(sorted(known))}")


@contextmanager
def reading_cells(state_dir: str | None, only: str | None = None) -> Iterator[ReachedCells]:
    """Let the block read cells, as `reach_cells` returns them. Exit with FAULT after it if a cell does not answer."""
    cells = reach_cells(state_dir, only)
    yield cells
    cells.report_away()


def writable_cells(state_dir: str | None, only: str | None = None) -> ReachedCells:
    """Return cells as `reach_cells` does, for a command that changes them.

    Raise SchemaConflict if this version must not change one of them, because another version has written it.
    """
    from shared.store.preflight import check_format

    cells = reach_cells(state_dir, only)
    for client in cells.clients.values():
        check_format(client)
    return cells


@contextmanager
def writing_cells(state_dir: str | None, only: str | None = None) -> Iterator[ReachedCells]:
    """Let the block change cells, as `writable_cells` returns them. Exit as `reading_cells` does."""
    cells = writable_cells(state_dir, only)
    yield cells
    cells.report_away()


@contextmanager
def changing_accounts(state_dir: str | None) -> Iterator["redis.Redis"]:
    """Let the block change accounts in all cells. Raises and exits as `writable_cells` and the method do."""
    with writable_cells(state_dir).changing_accounts() as client:
        yield client


@dataclass(frozen=True)
class ListedAccount:
    """One account in a list: its row of a table, and its JSON object."""

    row: tuple[object, ...]
    fields: Mapping[str, Any]


def write_accounts(
    cells: ReachedCells,
    columns: Sequence[str],
    lists: Mapping[str, Iterable[ListedAccount]],
    *,
    json: bool,
    styles: dict[str, str] | None = None,
) -> None:
    """Write the accounts of each cell as one list, in which accounts that are equal have one row with their cells."""
    if not cells.named:
        ((_, listed),) = lists.items()
        merged = [(one, list[str]()) for one in listed]
    else:
        merged = _merge(lists)
    if json:
        output.write_json([dict(one.fields) | ({"cells": names} if cells.named else {}) for one, names in merged])
        return
    rows = [(*one.row, cells.names(names)) if cells.named else one.row for one, names in merged]
    output.write_table((*columns, "cells") if cells.named else columns, rows, styles=styles)


def _merge(lists: Mapping[str, Iterable[ListedAccount]]) -> list[tuple[ListedAccount, list[str]]]:
    found: dict[str, tuple[ListedAccount, list[str]]] = {}
    for cell, listed in lists.items():
        for one in listed:
            found.setdefault(json_library.dumps(one.fields, sort_keys=True), (one, []))[1].append(cell)
    return list(found.values())
