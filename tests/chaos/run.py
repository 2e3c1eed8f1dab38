"""One phase of a run: starts a system, lets clients and faults act on it, ends the faults, and judges it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.audit.invariants import find_breaches, unowned_keys
from shared.cells.ids import cell_of_id
from shared.store import keys
from shared.store.decode import text
from tests.chaos.calls import Doors
from tests.chaos.cells import ChaosCells
from tests.chaos.cluster_cell import ClusterCell
from tests.chaos.cluster_faults import ClusterFaults
from tests.chaos.fairness import SharesOfCell
from tests.chaos.faults import Faults, Lane, ProcessFaults, StoreFaults
from tests.chaos.judge import END_WITHIN_S, Judge
from tests.chaos.ledger import Ledger
from tests.chaos.slots import SlotWatch
from tests.chaos.stores import StorePair
from tests.chaos.system import System
from tests.chaos.usage import usage_flaws
from tests.support.processes import ROOT, Process, wait_for
from tests.support.program import COMMAND

#: How many client processes there are; tests/chaos/client.py says how many users each of them has.
CLIENTS = 3
#: How long a user may take to end its last action: to follow a job, and then to poll it.
_CLIENTS_END_WITHIN_S = 90.0
#: How long it may take until each cell knows what the others have counted.
_TOLD_WITHIN_S = 20.0
#: The model of the sim engine.
_MODEL = "sim"


@dataclass(frozen=True)
class Phase:
    """A phase: one admission mode on a store of one durability."""

    admission: str
    #: Whether the store writes to its disk before each answer and the door waits for the replica.
    strict: bool
    seconds: float
    seed: int
    llama: bool = False
    #: Whether the replica may take the store's place. Without that, a strict store loses nothing.
    failovers: bool = True
    #: Whether the store is a cell of a cluster, whose slot moves. Nothing is lost then.
    cluster: bool = False
    #: The number of cells that a directory lists; 0 for no directory.
    cells: int = 0


@dataclass
class Verdict:
    """The results of a phase."""

    phase: Phase
    anomalies: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


def run_phase(phase: Phase, folder: Path) -> Verdict:
    """Run one phase in a folder of its own."""
    folder.mkdir(parents=True)
    (folder / "ledgers").mkdir()
    began, day = time.monotonic(), time.strftime("%Y-%m-%d", time.gmtime())
    with (
        _stores(phase, folder) as stores,
        System(folder, stores, admission=phase.admission, llama=phase.llama) as system,
    ):
        started = time.monotonic()
        clients = [_client(system, phase, folder, number) for number in range(CLIENTS)]
        lanes = [ProcessFaults(system).lane(), *_store_lanes(stores, phase)]
        faults = Faults(lanes, f"{phase.seed}/{phase.admission}")
        watch = SlotWatch(stores, system.slots, system.max_inflight)
        watch.start()
        faults.start()
        time.sleep(phase.seconds)
        faults.stop()
        stores.heal()
        system.heal()
        stopped = time.monotonic()
        failures = [f"a client ended with code {code}" for code in map(_end_client, clients) if code != 0]
        rng = random.Random(f"{phase.seed}/judge")
        doors = {tenant: Doors(system.door_ports, key, rng) for tenant, key in system.keys.items()}
        judge = Judge(
            Ledger.read(folder / "ledgers"),
            stores.losses,
            doors,
            knows_words=not phase.llama,
            may_run_twice=stores.may_run_twice,
        )
        judge.judge()
        failures += watch.stop() + _audit(system, phase)
        if not stores.losses:
            failures += _usage_flaws(judge, system, day)
        judge.check_unchanged()
        failures += faults.failures + system.deaths
        verdict = Verdict(phase, [{"kind": "run", "what": what} for what in failures] + judge.anomalies)
        verdict.report = {
            "admission": phase.admission,
            "strict_store": phase.strict,
            "anomalies": len(verdict.anomalies),
            "faults": dict(faults.counts),
            "lost_answers": stores.lost_answers,
            "losses": [loss.as_dict() for loss in stores.losses],
            "compared_usage": not stores.losses,
            "pauses": _pauses(system),
            "seconds": {
                "start": round(started - began, 1),
                "faults": round(stopped - started, 1),
                "judgement": round(time.monotonic() - stopped, 1),
            },
            **judge.counts(),
            **(_counts_of_cells(judge, folder) if phase.cells else {}),
        }
        return verdict


def _stores(phase: Phase, folder: Path) -> StorePair | ClusterCell | ChaosCells:
    if phase.cells:
        return ChaosCells(folder, phase.cells, in_cluster=phase.cluster)
    return ClusterCell(folder) if phase.cluster else StorePair(folder, strict=phase.strict)


def _store_lanes(stores: StorePair | ClusterCell | ChaosCells, phase: Phase) -> list[Lane]:
    if isinstance(stores, ChaosCells):
        return stores.lanes()
    if isinstance(stores, ClusterCell):
        return [ClusterFaults(stores.cluster, [stores.prefix]).lane()]
    return [StoreFaults(stores, failovers=phase.failovers).lane()]


def _counts_of_cells(judge: Judge, folder: Path) -> dict[str, Any]:
    """Return in which cells jobs were admitted, and how often doors wrote into their logs that they spilled one."""
    acknowledged = {entry["id"] for entry in judge.ledger.of("ack")}
    logs = [*folder.glob("door*.log"), *folder.glob("gate*.log")]
    return {
        "acknowledged_by_cell": dict(Counter(map(cell_of_id, acknowledged))),
        "logged_spills": sum(log.read_text(errors="replace").count('"job.spilled"') for log in logs),
    }


def _usage_flaws(judge: Judge, system: System, day: str) -> list[str]:
    """Return the flaws of the usage. Doors tell each cell every few seconds what a budget has spent in the others."""
    jobs, until = judge.jobs_by_tenant(), time.monotonic() + _TOLD_WITHIN_S
    while (flaws := usage_flaws(jobs, _operator(system), day)) and len(system.stores.clients) > 1:
        if time.monotonic() > until:
            break
    return flaws


def _client(system: System, phase: Phase, folder: Path, number: int) -> Process:
    keys = [f"{tenant}={key}" for tenant, key in system.keys.items()]
    arguments = ["--ledger", str(folder / "ledgers" / f"client{number}.jsonl"), "--seed", f"{phase.seed}/{number}"]
    arguments += ["--doors", *map(str, system.door_ports), "--gate", str(system.gate_port), "--keys", *keys]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.chaos.client", *arguments]
    return Process(command, environ, folder / f"client{number}.log")


def _end_client(client: Process) -> int:
    client.terminate()
    try:
        return client.exit_code(timeout_s=_CLIENTS_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        client.end()
        return -signal.SIGKILL


def _pauses(system: System) -> int:
    stats: list[Any] = [client.hgetall(keys.stats()) for client in system.stores.clients.values()]
    return sum(int(value) for one in stats for name, value in one.items() if text(name).startswith("pauses|"))


def _operator(system: System) -> dict[str, str]:
    """Return the environment of an operator's commands, which reach the store without the proxy."""
    return system.environ | system.stores.operator_environ


def _audit(system: System, phase: Phase) -> list[str]:
    """Wait until no job is inflight; return what doctor and the search for unowned keys find then."""
    clients = system.stores.clients
    found = []
    try:
        for client in clients.values():
            wait_for(lambda one=client: not one.zcard(keys.inflight()), "no inflight job", timeout_s=END_WITHIN_S)  # type: ignore[misc]
        if phase.cells:
            shares = [SharesOfCell(cell, client, _MODEL) for cell, client in clients.items()]
            found += [flaw for one in shares for flaw in one.flaws()]
    except AssertionError as error:
        found.append(str(error))
    for cell, client in clients.items():
        named = f"cell {cell}: " if phase.cells else ""
        breaches = find_breaches(client, timely=True)
        found += [f"{named}invariant {breach.invariant}: {breach.message}" for breach in breaches]
        found += [f"{named}unowned key: {key}" for key in unowned_keys(client)]
    doctor = subprocess.run(
        [*COMMAND, "doctor"], env=_operator(system), capture_output=True, text=True, timeout=60, check=False
    )
    if doctor.returncode:
        found.append(f"penstock doctor: exit {doctor.returncode}: {doctor.stdout[-2_000:]} {doctor.stderr[-500:]}")
    return found
