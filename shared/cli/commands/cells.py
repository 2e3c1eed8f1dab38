"""`penstock cells`: list, add, remove and drain cells, and move tenants between them."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import FAULT, Json, StateDir, end_with
from shared.cli.reached_cells import writing_cells
from shared.errors import ConfigError
from shared.settings.settings import Settings, load

if TYPE_CHECKING:
    import redis

    from shared.cells.directory import CellRecord, Directory
    from shared.cells.load import CellLoad
    from shared.cells.opening import Cells
    from shared.cells.stored import Changed

#: After this time, in seconds, all doors have read a change (they look every second).
NOTICE_S = 3.0
#: Time between two looks at the jobs that are left, in seconds.
_LOOK_EVERY_S = 0.25

_COLUMNS = ("cell", "place", "state", "weight", "region", "pinned", "jobs", "batches", "workers", "url", "prefix")

app = typer.Typer(no_args_is_help=True, help="Manage cells: stores among which the tenants are divided.")

Name = Annotated[str, typer.Argument(metavar="CELL", help="The cell's name: 1 to 16 lower-case letters and digits.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when no job or batch is left there.")]


@app.command("ls")
def list_all(
    *,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only cells with this tenant, its home first.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """List the cells, with their copies of the directory and the jobs that have not ended."""
    from shared.cells.load import cell_load, tenant_load
    from shared.cells.stored import ask_all
    from shared.store.keys import is_tenant_name

    if tenant is not None and not is_tenant_name(tenant):
        raise ConfigError(f"tenant={tenant[:80]!r} is not a tenant's name")
    settings = load(state_dir=state_dir)
    cells = _open(settings)
    look: Callable[[redis.Redis], CellLoad] = (
        cell_load if tenant is None else lambda client: tenant_load(client, tenant)
    )
    asked = ask_all(cells.answering, look)
    away = {**cells.away, **asked.away}
    listed = _lines(cells, asked.answers, tenant, settings.regions)
    if json:
        directory = cells.directory
        spread = directory.spread if directory else 1
        output.write_json({"version": directory.version if directory else 0, "spread": spread, "cells": listed})
    else:
        output.write_table(_COLUMNS, ([line[column] for column in _COLUMNS] for line in listed))
    for name, error in sorted(away.items()):
        output.write_note(f"cell {name} does not answer: {error}")
    if away:
        raise typer.Exit(FAULT)


def _lines(cells: "Cells", loads: "Mapping[str, CellLoad]", tenant: str | None, regions: str) -> list[dict[str, Any]]:
    """Return one line for each cell; with a tenant, for its cells in order and those where its older jobs are.

    The order is that of a door with these PENSTOCK_REGIONS.
    """
    from shared.cells.edits import pinned_to
    from shared.cells.placement import near_regions, tenant_cells
    from shared.settings.secret_values import without_password

    directory = cells.directory
    records = directory.cells if directory else {}
    placed = tenant_cells(directory, tenant, regions=near_regions(regions)) if directory and tenant else ()
    lines = []
    for name in [*placed, *(name for name in sorted(cells) if name not in placed)]:
        record, loaded = records.get(name), loads.get(name)
        if tenant and name not in placed and loaded is not None and loaded.is_empty:
            continue
        lines.append(
            {
                "cell": name,
                "place": placed.index(name) + 1 if tenant and name in placed else None,
                "state": record.state if record else "serving",
                "weight": record.weight if record else 1.0,
                "region": record.region if record else "",
                "pinned": len(pinned_to(directory, name)) if directory else 0,
                "jobs": loaded.jobs if loaded else None,
                "batches": loaded.batches if loaded else None,
                "workers": loaded.workers if loaded else None,
                "url": without_password(record.url) if record else None,
                "prefix": record.prefix if record else "",
            }
        )
    return lines


@app.command()
def add(
    name: Name,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The cell's store; without a user, that of REDIS_URL is used.")
    ],
    *,
    prefix: Annotated[str, typer.Option(help="The cell's key prefix, such as {c2}: or c2:.")] = "",
    weight: Annotated[float, typer.Option(help="A cell of weight 2 gets twice as many tenants as one of 1.")] = 1.0,
    region: Annotated[str, typer.Option(help="The cell's region, whose doors prefer it.")] = "",
    draining: Annotated[bool, typer.Option("--draining", help="Give it no tenants until `drain CELL --off`.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Change the URL, prefix, weight and region of a cell that exists.")
    ] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Add a cell, after a check of its store, and copy all accounts into it. Tenants that hash to it move there."""
    from shared.accounts.admin_actions import local_actor
    from shared.cells.directory import CellRecord
    from shared.cells.joining import join
    from shared.cells.load import cell_load
    from shared.cells.opening import open_cell, own_record, short_url
    from shared.store.connection import OPERATOR

    settings = load(state_dir=state_dir)
    record = CellRecord(name, url, prefix, weight, "draining" if draining else "serving", region)
    record = dataclasses.replace(record, url=short_url(url, settings.store_url))
    cells = _open(settings)
    client = open_cell(record, name="penstock-cli", timeouts=OPERATOR, store_url=settings.store_url)
    joined = join(cells, record, client, default=own_record(settings), actor=local_actor(), replaces=replace)
    for warning in joined.warnings:
        output.write_note(f"cell {name}: {warning}")
    if not cell_load(client).workers:
        output.write_note(f"cell {name} has no workers yet: start some with its REDIS_URL and PENSTOCK_KEY_PREFIX")
    if cells.directory is None:
        output.write_note(_entered(joined.changed.directory.cells["default"]))
    _report(joined.changed, f"cell {name} is {'changed' if replace else 'added'}", json=json)


def _entered(default: "CellRecord") -> str:
    """Say that the store in force is now a cell, and if only this machine reaches it."""
    from shared.cells.opening import is_local
    from shared.settings.secret_values import without_password

    reach = ", which only this machine reaches: doors elsewhere need another URL (`--replace`)"
    return f"the store in force is cell default, at {without_password(default.url)}{reach if is_local(default) else ''}"


@app.command()
def rm(
    name: Name,
    *,
    lost: Annotated[bool, typer.Option("--lost", help="Its store is lost for ever, with the jobs in it.")] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Remove a cell that drains and has no job left. Results and files in it are no longer found."""
    from shared.accounts.admin_actions import local_actor, record
    from shared.cells.edits import find_cell, require_directory, without_cell
    from shared.cells.opening import is_own
    from shared.cells.stored import StoredDirectory

    settings = load(state_dir=state_dir)
    cells = _open(settings)
    directory = require_directory(cells.directory)
    find_cell(directory, name)
    if list(directory.cells) == [name]:
        StoredDirectory(cells[name]).remove()
        record(cells[name], local_actor(), "cell.rm", f"cell {name}, the last one")
        output.write_note(f"cell {name} was the last one: there is no directory any more; restart the doors")
        return
    without_cell(directory, name, at_ms=0, is_lost=lost)
    if not lost:
        _require_empty(cells, name)
    elif name in cells.answering:
        raise ConfigError(f"cell={name!r} is not lost: its store answers; first `penstock cells drain {name} --wait`")
    changed = _change(cells, lambda found, ms: without_cell(found, name, at_ms=ms, is_lost=lost), "rm", f"cell {name}")
    if not lost:
        # Until a door has read the change, it may write its older directory into this cell.
        time.sleep(NOTICE_S)
        StoredDirectory(cells[name]).remove()
    if is_own(settings, directory.cells[name]):
        output.write_note("REDIS_URL names the removed cell: set that of another one, also for doors")
    _report(changed, f"cell {name} is removed", json=json)


@app.command()
def drain(
    name: Name,
    *,
    off: Annotated[bool, typer.Option("--off", help="Give the cell new jobs again.")] = False,
    wait: Wait = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Let a cell get no new jobs: its tenants' go to their next cells, and the jobs in it end there."""
    from shared.cells.edits import with_draining
    from shared.cells.load import cell_load

    if off and wait:
        raise ConfigError("--off and --wait exclude each other: a cell that gets jobs is never empty for good")
    cells = _open(load(state_dir=state_dir))
    what = "resume" if off else "drain"
    changed = _change(
        cells, lambda found, ms: with_draining(found, name, at_ms=ms, draining=not off), what, f"cell {name}"
    )
    if wait:
        _wait(cells, [name], cell_load)
    _report(changed, f"cell {name} gets new jobs again" if off else f"cell {name} gets no new jobs", json=json)


@app.command()
def move(
    tenant: Tenant,
    to: Annotated[
        str | None, typer.Argument(metavar="CELL[,CELL2]", help="The tenant's cells, its new home first.")
    ] = None,
    *,
    region: Annotated[
        str | None,
        typer.Option(metavar="REGION[,…]", help="Let the tenant's jobs be in cells of these regions only."),
    ] = None,
    unpin: Annotated[
        bool, typer.Option("--unpin", help="Let hashing choose the tenant's cells among all again.")
    ] = False,
    wait: Wait = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Pin a tenant to cells or regions: new jobs go there, and those in its other cells end where they are."""
    from shared.cells.edits import with_placement
    from shared.cells.load import tenant_load
    from shared.cells.placement import near_regions, tenant_cells
    from shared.cells.stored import ask_all

    if unpin == (to is not None or region is not None):
        raise ConfigError(f"tenant={tenant[:80]!r}: name its cells or --region, or use --unpin")
    names = to.split(",") if to is not None else []
    regions = region.split(",") if region is not None else []
    settings = load(state_dir=state_dir)
    cells = _open(settings)
    on = f"tenant {tenant}: {', '.join(names) or 'unpinned'}{f' in {region}' if region else ''}"
    changed = _change(
        cells, lambda found, ms: with_placement(found, tenant, names, regions=regions, at_ms=ms), "move", on
    )
    placed = tenant_cells(changed.directory, tenant, regions=near_regions(settings.regions))
    if not unpin:
        _note_unknown(cells, tenant)
    if not cells.answering.keys() & placed:
        output.write_note(f"new jobs of tenant {tenant} are refused with store_unavailable until {placed[0]} answers")
    others = {name: client for name, client in cells.answering.items() if name not in placed}
    if wait:
        _wait(cells, list(others), lambda client: tenant_load(client, tenant))
    left = ask_all(others, lambda client: tenant_load(client, tenant)).answers
    for name, one in left.items():
        if not one.is_empty:
            output.write_note(f"cell {name}: {one} of tenant {tenant} left, to end there")
    more = {"tenant": tenant, "cells": list(placed), "left": {name: one.jobs for name, one in left.items()}}
    _report(changed, f"new jobs of tenant {tenant} go to {', '.join(placed)}", more, json=json)


@app.command()
def spread(
    count: Annotated[str, typer.Argument(metavar="COUNT", help="The number of cells of a tenant, or `default`.")],
    *,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only for this tenant; `default` ends that.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Set the number of cells of each tenant: a door offers a job that its home refuses to the next of them."""
    from shared.cells.edits import with_spread

    if count != "default" and not (count.isascii() and count.isdecimal() and len(count) < 3):
        raise ConfigError(f"count={count[:80]!r} is neither a number of cells nor 'default'")
    number = None if count == "default" else int(count)
    cells = _open(load(state_dir=state_dir))
    whose = f"tenant {tenant}" if tenant is not None else "each tenant without a number of its own"
    changed = _change(
        cells, lambda found, ms: with_spread(found, number, tenant, at_ms=ms), "spread", f"{whose}: {count}"
    )
    count = str(changed.directory.spread) if number is None else count
    if tenant is not None and number is not None:
        _note_unknown(cells, tenant)
    if int(count) > len(changed.directory.cells):
        output.write_note(f"the directory lists only {len(changed.directory.cells)}")
    _report(changed, f"{whose} has {count} cell{'' if count == '1' else 's'}", json=json)


@app.command()
def sync(
    *,
    source: Annotated[
        str | None, typer.Option("--from", metavar="CELL", help="The cell whose accounts all others get.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Make the accounts of all cells equal again, after changes that did not reach each of them.

    Without `--from`, they get those of a cell that has missed no change. The differences are listed first.
    """
    from shared.accounts.admin_actions import local_actor
    from shared.cells.account_changes import AccountCells
    from shared.cells.accounts import differences

    with writing_cells(state_dir) as cells:
        for sentence in differences(cells.clients):
            output.write_note(sentence)
        copied = AccountCells(cells.clients, cells.away).sync(local_actor(), source)
        if json:
            output.write_json([{"cell": name, "changed": count} for name, count in copied.items()])
            return
        for name, count in copied.items():
            output.write_note(f"cell {name}: {count or 'no'} account{'' if count == 1 else 's'} changed")


def _note_unknown(cells: "Cells", tenant: str) -> None:
    """Say that a tenant may be misspelled, if no cell that answers knows it."""
    from shared.cells.load import knows_tenant
    from shared.cells.stored import ask_all

    if not any(ask_all(cells.answering, lambda client: knows_tenant(client, tenant)).answers.values()):
        output.write_note(f"no cell has a policy, a key or a job of tenant {tenant}")


def _open(settings: Settings) -> "Cells":
    """Return the cells in force. Raises SchemaConflict if this version must not change one of them."""
    from shared.cells.opening import cells_in_force
    from shared.store.preflight import check_format

    cells = cells_in_force(settings)
    for client in cells.answering.values():
        check_format(client)
    return cells


def _change(cells: "Cells", edit: "Callable[[Directory | None, int], Directory]", what: str, on: str) -> "Changed":
    from shared.accounts.admin_actions import local_actor
    from shared.cells.stored import change

    return change(cells.answering, edit, actor=local_actor(), what=f"cell.{what}", on=on)


def _report(changed: "Changed", note: str, more: dict[str, Any] | None = None, *, json: bool) -> None:
    """Say what was changed. Exit with FAULT if a cell has not got the change."""
    if json:
        version = {"version": changed.directory.version, "not_reached": list(changed.away)}
        output.write_json((more or {}) | version)
    else:
        output.write_note(f"{note} (version {changed.directory.version} of the directory)")
    if changed.away:
        names = ", ".join(changed.away)
        output.write_note(f"not reached: {names}; doors pass the change on when it answers again")
        raise typer.Exit(FAULT)


def _require_empty(cells: "Cells", name: str) -> None:
    """Exit with FAULT if a cell does not answer, or has something left to do when all doors know that it drains."""
    from shared.cells.load import cell_load

    if name in cells.away:
        end_with(f"cell {name} does not answer: {cells.away[name]}. If its store is lost for ever, use --lost")
    seconds, _ = cells[name].time()
    changed_s = cells.directory.changed_ms / 1_000 if cells.directory else 0
    time.sleep(min(NOTICE_S, max(0.0, changed_s + NOTICE_S - seconds)))
    left = cell_load(cells[name])
    if not left.is_empty:
        end_with(f"cell {name} has {left} left; `penstock cells drain {name} --wait` waits until they have ended")


def _wait(cells: "Cells", names: list[str], look: "Callable[[redis.Redis], CellLoad]") -> None:
    """Return when nothing is left in these cells and all doors know that nothing more may come."""
    from shared.cells.stored import ask_all

    since_s, noted = time.monotonic(), ""
    while True:
        asked = ask_all({name: cells[name] for name in names if name in cells.answering}, look)
        for error in asked.away.values():
            raise error
        left = "; ".join(f"cell {name}: {load}" for name, load in asked.answers.items() if not load.is_empty)
        if not left and time.monotonic() > since_s + NOTICE_S:
            return
        if left not in {"", noted}:
            noted = left
            output.write_note(f"left: {left}")
        time.sleep(_LOOK_EVERY_S)
