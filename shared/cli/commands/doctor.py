"""`penstock doctor`: check every invariant on the live store, print a table, and exit with 1 if one is broken."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.reach import FAULT, Json, StateDir, collections_database, store_client, writable_store_client
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
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Check every invariant on the live store.

    Exit with 0 if all hold. Exit with 1 if one is broken, if the store cannot serve or refuses writes, if its own
    settings could lose jobs, if the folder for files cannot be used, if the database of collections is away, or if
    workers end by faults again and again. With --repair, the check follows the repair.
    """
    from shared.accounts.admin_actions import local_actor, record
    from shared.audit.invariants import INVARIANTS, find_breaches
    from shared.audit.repair import repair as repair_store
    from shared.store.store import Store

    client = writable_store_client(state_dir) if repair else store_client(state_dir)
    judged = _judged(client, load(state_dir=state_dir))
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
    settings = load(state_dir=state_dir)
    has_faults, about_others = _others(client, settings, judged["store_fault"])
    notes = [*_said_of(judged), *fitness, *about_others, *_advice(client, snapshot, settings)]
    notes += [*_undelivered(client), *_unsent_alerts(client), *_spoiled(client), *skew_notes(client)]
    verdicts = {
        number: _BROKEN if found else _NOT_JUDGED if number == 10 and not timely else _HOLDS
        for number, found in by_number.items()
    }
    broken = is_unfit or has_faults or any(by_number.values())
    if json:
        rows = [
            {"invariant": number, "says": INVARIANTS.get(number, ""), "verdict": verdicts[number], "breaches": found}
            for number, found in by_number.items()
        ]
        output.write_json(judged | {"holds": not broken, "invariants": rows, "notes": notes, "changes": changes})
    else:
        for change in changes:
            output.write_note(f"changed: {change}")
        cells = [
            (number, verdicts[number], INVARIANTS.get(number, ""), "\n".join(found))
            for number, found in by_number.items()
        ]
        output.write_table(
            ("no", "verdict", "invariant", "breaches"), cells, styles={_HOLDS: "green", _BROKEN: "bold red"}
        )
        for note in notes:
            output.write_note(note)
    if broken:
        raise typer.Exit(FAULT)


def _judged(client: "redis.Redis", settings: Settings) -> dict[str, str | None]:
    """Return the URLs of the store that is judged and of its door, and whether the door is ready or why not.

    `store_fault` is the reason for which the store refuses writes, or None.

    The door of an embedded store is the one that `penstock up` serves beside it. The door of any other store is the one
    at PENSTOCK_URL, which may use another store.
    """
    from shared.cli.readiness import why_not_ready
    from shared.state_dir import up_url
    from shared.store.preflight import find_write_fault

    door = settings.url if settings.redis_url else up_url(settings.state_path) or settings.url
    fault = find_write_fault(client)
    reason = why_not_ready(door, host=settings.allowed_hosts.split(",")[0].strip())
    prefix = settings.store_prefix
    return {
        "store": without_password(settings.store_url),
        "key_prefix": prefix,
        "door": door,
        "door_state": f"is not ready: {reason}" if reason else "is ready",
        "store_fault": None if fault is None else fault.value,
    }


def _said_of(judged: dict[str, str | None]) -> list[str]:
    """Return the notes about what is judged: the store, the keys in it, and the door."""
    keys = f", keys that begin with {judged['key_prefix']}" if judged["key_prefix"] else ""
    return [f"store: {judged['store']}{keys}", f"door: {judged['door']} {judged['door_state']}"]


def _fitness(client: "redis.Redis") -> tuple[bool, list[str]]:
    """Return whether the store's own settings could lose jobs silently, and why, or else warnings about the store."""
    from shared.alerts.findings import unfitness

    reason, warnings = unfitness(client)
    return bool(reason), [reason] if reason else warnings


def _others(client: "redis.Redis", settings: Settings, store_fault: str | None) -> tuple[bool, list[str]]:
    """Return whether workers, the folder for files, the database or the store are at fault, and notes about them.

    With a `store_fault`, the folder is not judged, because that corrects the store's sums of files.
    """
    from shared.alerts.findings import store_sentence
    from shared.store.batches.storage_location import files_notes

    if store_fault is None:
        about_store = files_notes(client, settings)
    else:
        about_store = (True, [store_sentence(StoreFault(store_fault))])
    found = [_restarts(client), about_store, _database(settings)]
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
