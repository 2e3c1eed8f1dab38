"""`penstock doctor`: check every invariant on the live store, print a table, and exit with 1 if one is broken."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import FAULT, Json, StateDir, collections_database
from shared.cli.reached_cells import CellName, ReachedCells, reading_cells, writing_cells
from shared.errors import ConfigError
from shared.settings.secret_values import without_password
from shared.settings.settings import Settings, load
from shared.store_fault import StoreFault

if TYPE_CHECKING:
    import redis

    from shared.store.replies import Snapshot

_HOLDS, _BROKEN, _NOT_JUDGED = "holds", "BROKEN", "not judged"
#: An offset of the store's time that is reported. A failover to a replica whose clock is behind leaves a smaller one.
_AHEAD_MS = 1_000
#: A difference between this machine's clock and that of the store's machine that is reported, in seconds.
_SKEW_S = 1.0
#: The most models that a snapshot has.
_MODELS_SEEN = 64


def doctor(
    *,
    repair: Annotated[bool, typer.Option("--repair", help="First repair what can be repaired, and list it.")] = False,
    cell: CellName = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Check every invariant on the live store.

    Exit with 0 if all hold. Exit with 1 if one is broken, if the store cannot serve or refuses writes, if its own
    settings could lose jobs, if the folder for files cannot be used, if the database of collections is away, if workers
    end by faults again and again, or if cells are away or have different accounts. With --repair, the check follows the
    repair.
    """
    with (writing_cells if repair else reading_cells)(state_dir, cell) as cells:
        settings = load(state_dir=state_dir)
        door = _door(settings)
        reports = {
            name: _examine(client, cells.settings(name, settings), door, repair=repair, named=cells.named)
            for name, client in cells.clients.items()
        }
        if cells.named:
            broken = _write_reports(cells, reports, settings, door, json=json)
        else:
            (report,) = reports.values()
            broken = report.broken
            if json:
                output.write_json(report.as_dict())
            else:
                _write_changes(cells, reports)
                _write_invariants(cells, reports)
                for note in report.notes:
                    output.write_note(note)
        if broken:
            cells.note_away()
            raise typer.Exit(FAULT)


@dataclass(frozen=True)
class _Report:
    """The result for one store."""

    judged: dict[str, str | None]
    invariants: list[dict[str, Any]]
    notes: list[str]
    changes: list[str]
    broken: bool

    def as_dict(self) -> dict[str, Any]:
        return self.judged | {
            "holds": not self.broken,
            "invariants": self.invariants,
            "notes": self.notes,
            "changes": self.changes,
        }


def _examine(client: "redis.Redis", settings: Settings, door: dict[str, str], *, repair: bool, named: bool) -> _Report:
    """Repair a store if that is wanted, and check it. If it is `named`, door and database are judged elsewhere."""
    from shared.accounts.admin_actions import local_actor, record
    from shared.audit.invariants import INVARIANTS, find_breaches
    from shared.audit.repair import repair as repair_store
    from shared.store.preflight import find_write_fault
    from shared.store.store import Store

    fault = find_write_fault(client)
    judged: dict[str, str | None] = {"store": without_password(settings.store_url), "key_prefix": settings.store_prefix}
    judged |= ({} if named else door) | {"store_fault": None if fault is None else fault.value}
    store = Store(client)
    snapshot = store.snapshot(stats=True)
    # Invariant 10 holds only while some process reaps. A live worker proves that a process does. If no worker is live,
    # do not judge invariant 10.
    timely = snapshot.live_workers > 0
    changes = repair_store(store, timely=timely) if repair else []
    if changes:
        record(client, local_actor(), "store.repair", f"{len(changes)} changes, the first: {changes[0]}")
    by_number: dict[int, list[str]] = {number: [] for number in INVARIANTS}
    for breach in find_breaches(client, timely=timely):
        by_number.setdefault(breach.invariant, []).append(breach.message)
    is_unfit, fitness = _fitness(client)
    has_faults, about_others = _others(client, settings, fault, database=not named)
    notes = [*_said_of(judged), *fitness, *about_others, *_advice(client, snapshot, settings)]
    notes += [*_undelivered(client), *_unsent_alerts(client), *_spoiled(client), *skew_notes(client)]
    invariants = [
        {
            "invariant": number,
            "says": INVARIANTS.get(number, ""),
            "verdict": _BROKEN if found else _NOT_JUDGED if number == 10 and not timely else _HOLDS,
            "breaches": found,
        }
        for number, found in by_number.items()
    ]
    return _Report(judged, invariants, notes, changes, is_unfit or has_faults or any(by_number.values()))


def _write_reports(
    cells: ReachedCells, reports: Mapping[str, _Report], settings: Settings, door: dict[str, str], *, json: bool
) -> bool:
    """Write what was found in each cell, and what all have in common. Return whether anything is broken."""
    from shared.cells.checks import directory_problems
    from shared.cells.equality import account_faults
    from shared.cells.opening import Cells

    has_database_fault, notes = _database(settings)
    notes = [_said_of_door(door), *notes]
    faults: list[str] = []
    # One cell says nothing about what is equal in all.
    if cells.directory is not None and len({*reports, *cells.away}) == len(cells.directory.cells):
        faults = directory_problems(Cells(cells.directory, cells.clients))
        faults += account_faults(cells.clients, cells.away)
    broken = has_database_fault or bool(faults) or any(report.broken for report in reports.values())
    notes += faults
    if json:
        of_cells = [cells.as_dict(name, report.as_dict()) for name, report in reports.items()]
        holds = not broken and not cells.away
        output.write_json(door | {"holds": holds, "notes": notes, "away": dict(cells.away), "cells": of_cells})
        return broken
    _write_changes(cells, reports)
    _write_invariants(cells, reports)
    for note in notes:
        output.write_note(note)
    for name, report in reports.items():
        for note in report.notes:
            output.write_note(cells.note(name, note))
    return broken


def _write_changes(cells: ReachedCells, reports: Mapping[str, _Report]) -> None:
    for name, report in reports.items():
        for change in report.changes:
            output.write_note(cells.note(name, f"changed: {change}"))


def _write_invariants(cells: ReachedCells, reports: Mapping[str, _Report]) -> None:
    rows = [
        cells.row(name, (one["invariant"], one["verdict"], one["says"], "\n".join(one["breaches"])))
        for name, report in reports.items()
        for one in report.invariants
    ]
    columns = cells.columns(("no", "verdict", "invariant", "breaches"))
    output.write_table(columns, rows, styles={_HOLDS: "green", _BROKEN: "bold red"})


def _door(settings: Settings) -> dict[str, str]:
    """Return the URL of the door, and whether it is ready or why not.

    The door of an embedded store is the one that `penstock up` serves beside it. The door of any other store is the one
    at PENSTOCK_URL, which may use another store.
    """
    from shared.cli.readiness import why_not_ready
    from shared.state_dir import up_url

    door = settings.url if settings.redis_url else up_url(settings.state_path) or settings.url
    reason = why_not_ready(door, host=settings.allowed_hosts.split(",")[0].strip())
    return {"door": door, "door_state": f"is not ready: {reason}" if reason else "is ready"}


def _said_of(judged: dict[str, str | None]) -> list[str]:
    """Return the notes about what is judged: the store, the keys in it, and the door unless it is judged elsewhere."""
    keys = f", keys that begin with {judged['key_prefix']}" if judged["key_prefix"] else ""
    notes = [f"store: {judged['store']}{keys}"]
    return [*notes, _said_of_door(judged)] if "door" in judged else notes


def _said_of_door(judged: Mapping[str, str | None]) -> str:
    return f"door: {judged['door']} {judged['door_state']}"


def _fitness(client: "redis.Redis") -> tuple[bool, list[str]]:
    """Return whether the store's own settings could lose jobs silently, and why, or else warnings about the store."""
    from shared.alerts.findings import unfitness

    reason, warnings = unfitness(client)
    return bool(reason), [reason] if reason else warnings


def _others(
    client: "redis.Redis", settings: Settings, store_fault: StoreFault | None, *, database: bool
) -> tuple[bool, list[str]]:
    """Return whether workers, the folder for files, the database or the store are at fault, and notes about them.

    With a `store_fault`, the folder is not judged, because that corrects the store's sums of files. The database is
    judged only if that is wanted.
    """
    from shared.alerts.findings import store_sentence
    from shared.store.batches.storage_location import files_notes

    about_store = files_notes(client, settings) if store_fault is None else (True, [store_sentence(store_fault)])
    found = [_restarts(client), about_store, *([_database(settings)] if database else [])]
    return any(is_at_fault for is_at_fault, _ in found), [note for _, notes in found for note in notes]


def _restarts(client: "redis.Redis") -> tuple[bool, list[str]]:
    """Return whether workers end by faults again and again, and a note about each pool whose workers restart often."""
    from shared.store.crashes import find_restart_loops

    loops = find_restart_loops(client)
    return any(loop.has_fault for loop in loops), [loop.sentence() for loop in loops]


def _database(settings: Settings) -> tuple[bool, list[str]]:
    """Return whether a database of collections is set and away, and notes about it."""
    try:
        database = collections_database(settings)
    except ConfigError as error:
        return True, [str(error)]
    if database is None:
        return False, []
    from shared.retrieval.errors import RetrievalError

    try:
        reason = database.ready()
        if reason is not None:
            return True, [f"the database of collections is away: {reason}"]
        return False, ["database: answers", *database.notes()]
    except RetrievalError as error:
        return True, [str(error)]
    finally:
        database.close()


def _undelivered(client: "redis.Redis") -> list[str]:
    """Return a note about the tenants whose webhooks are not delivered, which shows whose receiver is away."""
    from shared.alerts.findings import undelivered_sentence
    from shared.store.webhooks import Webhooks

    return [undelivered_sentence(*late) for late in Webhooks(client).undelivered()]


def _unsent_alerts(client: "redis.Redis") -> list[str]:
    """Return a note if the last tries to send an alert have failed."""
    from shared.alerts.incidents import parse_incidents
    from shared.alerts.stored import StoredAlerts

    state = parse_incidents(StoredAlerts(client).read(), time.time_ns() // 1_000_000)
    if not state.tries:
        return []
    return [
        f"alerts are not delivered: {state.tries} tries have failed, the last one with {state.last} (docs/alerts.md)"
    ]


def _spoiled(client: "redis.Redis") -> list[str]:
    """Return a note about each value of another program that was moved out of the way, or that needs a person."""
    from shared.accounts.admin_keys import AdminKeys
    from shared.accounts.api_keys import ApiKeys
    from shared.accounts.groups import Groups
    from shared.accounts.routes import Routes
    from shared.accounts.tenants import Tenants
    from shared.accounts.usage import UsageRecords
    from shared.store import keys
    from shared.store.decode import text
    from shared.store.redis_errors import store_faults

    with store_faults(client):
        found = sorted(text(raw) for raw in client.scan_iter(f"{keys.spoiled('')}*", count=1_000))
    return [
        *(f"{key.removeprefix(keys.spoiled(''))} held another program's value, kept as {key}" for key in found),
        *(f"{problem}; the default applies (`penstock tenants set`)" for problem in Tenants(client).find_spoiled()),
        *(f"{problem}; the default applies (`penstock groups set`)" for problem in Groups(client).find_spoiled()),
        *(f"{problem}; nobody is served by it (`penstock routes rm`)" for problem in Routes(client).read()[1]),
        *ApiKeys(client).find_unreadable(),
        *AdminKeys(client).find_unreadable(),
        *(f"{problem}: another program has changed them" for problem in UsageRecords(client).find_gaps()),
    ]


def skew_notes(client: "redis.Redis", wall_clock_s: Callable[[], float] = time.time) -> list[str]:
    """Return a note if the clock of this machine differs from that of the store's machine by more than a second."""
    from shared.store.redis_errors import store_faults

    asked_s = wall_clock_s()
    with store_faults(client):
        seconds, micros = client.time()
    answered_s = wall_clock_s()
    # The store read its clock at some time between the question and the answer.
    skew_s = (asked_s + answered_s) / 2 - (seconds + micros / 1_000_000)
    if abs(skew_s) <= _SKEW_S + (answered_s - asked_s) / 2:
        return []
    side = "ahead of" if skew_s > 0 else "behind"
    note = f"the clock of this machine is {abs(skew_s):.1f} s {side} that of the store's machine: times in logs and "
    return [note + "the created_at in RQ's records differ by as much, deadlines and leases do not"]


def _advice(client: "redis.Redis", snapshot: "Snapshot", settings: Settings) -> list[str]:
    """Return notes about models that are not served, about crashes, and about conditions that have a cost."""
    from shared.alerts.findings import clock_sentence, measured, unserved, unserved_sentence
    from shared.store.crashes import crashes_of_pools

    slots = snapshot.live_slots
    notes = [unserved_sentence(line) for line in unserved(client, snapshot)]
    notes += [found.text for found in measured(client, settings)]
    notes += [
        f"workers of pool {model} have crashed {crashes} times since the store was created: read the lines "
        "engine.llama, engine.aborted and worker.ending of their logs (docs/runbook.md)"
        for model, crashes in crashes_of_pools(snapshot.stats).items()
    ]
    if len(snapshot.live_models) >= _MODELS_SEEN:
        notes.append(
            f"{_MODELS_SEEN} models are live, or more: doors, the console and this command know only the ones "
            "that were heard last, so requests for others may get 404 model_not_found"
        )
    if slots and snapshot.max_inflight < 4 * slots:
        notes.append(
            f"PENSTOCK_MAX_INFLIGHT is {snapshot.max_inflight}, less than 4 x the {slots} live slots: "
            "tenants with many jobs can take all places before tenants with few"
        )
    notes += [
        f"pool {model} is at tier {tier}: answers of tenants with --degrade are cut to the time left"
        for model, tier in snapshot.tiers.items()
        if tier
    ]
    if snapshot.ahead_ms > _AHEAD_MS:
        notes.append(clock_sentence(snapshot.ahead_ms))
    if snapshot.draining:
        notes.append("the system is draining: no new jobs are admitted")
    return notes
