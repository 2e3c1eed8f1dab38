"""`penstock doctor`: every invariant on the live store, as a table and an exit code."""

from typing import TYPE_CHECKING

import typer

from shared.cli import output
from shared.cli.reach import FAULT, Json, StateDir, store_client
from shared.errors import StoreUnfit

if TYPE_CHECKING:
    import redis

    from shared.store.replies import Snapshot

_HOLDS, _BROKEN, _NOT_JUDGED = "holds", "BROKEN", "not judged"


def doctor(*, state_dir: StateDir = None, json: Json = False) -> None:
    """Check every invariant on the live store; exit 0 when all hold, 1 when one is broken."""
    from shared.audit.invariants import INVARIANTS, breaches
    from shared.store.store import Store

    client = store_client(state_dir)
    snapshot = Store(client).snapshot()
    # Lateness is nobody's fault where nobody is there to move what is late.
    timely = any(worker.live for worker in snapshot.workers)
    by_number: dict[int, list[str]] = {number: [] for number in INVARIANTS}
    for breach in breaches(client, timely=timely):
        by_number.setdefault(breach.invariant, []).append(breach.what)
    unfit, notes = _fitness(client)
    notes += _advice(snapshot)
    words = {
        number: _BROKEN if found else _NOT_JUDGED if number == 10 and not timely else _HOLDS
        for number, found in by_number.items()
    }
    broken = unfit or any(by_number.values())
    if json:
        rows = [
            {"invariant": number, "says": INVARIANTS.get(number, ""), "verdict": words[number], "breaches": found}
            for number, found in by_number.items()
        ]
        output.as_json({"holds": not broken, "invariants": rows, "notes": notes})
    else:
        lines = [
            (number, words[number], INVARIANTS.get(number, ""), "\n".join(found)) for number, found in by_number.items()
        ]
        output.table(("no", "verdict", "invariant", "breaches"), lines, marks={_HOLDS: "green", _BROKEN: "bold red"})
        for line in notes:
            output.note(line)
    if broken:
        raise typer.Exit(FAULT)


def _fitness(client: "redis.Redis") -> tuple[bool, list[str]]:
    """Whether the store could lose jobs silently, and what there is to say of it."""
    from shared.store.preflight import check_fitness

    try:
        return False, check_fitness(client)
    except StoreUnfit as error:
        return True, [str(error)]


def _advice(snapshot: "Snapshot") -> list[str]:
    """What is allowed and costs something."""
    slots = sum(worker.slots for worker in snapshot.workers if worker.live)
    notes = []
    if slots and snapshot.max_inflight < 4 * slots:
        notes.append(
            f"PENSTOCK_MAX_INFLIGHT is {snapshot.max_inflight}, less than 4 x the {slots} live slots: "
            "busy tenants can crowd out quiet ones"
        )
    notes += [
        f"pool {model} is at tier {tier}: answers of tenants that opted in are cut to the time left"
        for model, tier in snapshot.tiers.items()
        if tier
    ]
    if snapshot.draining:
        notes.append("the system drains: nothing new is admitted")
    return notes
