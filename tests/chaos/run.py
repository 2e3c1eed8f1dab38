"""One phase of a run: starts a system, lets clients and faults act on it, ends the faults, and judges it."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.audit.invariants import find_breaches, unowned_keys
from shared.store import keys
from shared.store.decode import text
from tests.chaos.calls import Doors
from tests.chaos.cluster_cell import ClusterCell
from tests.chaos.cluster_faults import ClusterFaults
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
        ClusterCell(folder) if phase.cluster else StorePair(folder, strict=phase.strict) as pair,
        System(folder, pair, admission=phase.admission, llama=phase.llama) as system,
    ):
        started = time.monotonic()
        clients = [_client(system, phase, folder, number) for number in range(CLIENTS)]
        faults = Faults(
            [ProcessFaults(system).lane(), _store_lane(pair, phase)],
            f"{phase.seed}/{phase.admission}",
        )
        watch = SlotWatch(pair, system.slots)
        watch.start()
        faults.start()
        time.sleep(phase.seconds)
        faults.stop()
        pair.heal()
        system.heal()
        stopped = time.monotonic()
        failures = [f"a client ended with code {code}" for code in map(_end_client, clients) if code != 0]
        rng = random.Random(f"{phase.seed}/judge")
        doors = {tenant: Doors(system.door_ports, key, rng) for tenant, key in system.keys.items()}
        judge = Judge(Ledger.read(folder / "ledgers"), pair.losses, doors, knows_words=not phase.llama)
        judge.judge()
        failures += watch.stop() + _audit(system)
        if not pair.losses:
            failures += usage_flaws(judge.jobs_by_tenant(), _operator(system), day)
        judge.check_unchanged()
        failures += faults.failures + system.deaths
        verdict = Verdict(phase, [{"kind": "run", "what": what} for what in failures] + judge.anomalies)
        verdict.report = {
            "admission": phase.admission,
            "strict_store": phase.strict,
            "anomalies": len(verdict.anomalies),
            "faults": dict(faults.counts),
            "lost_answers": pair.lost_answers,
            "losses": [loss.as_dict() for loss in pair.losses],
            "compared_usage": not pair.losses,
            "pauses": _pauses(system),
            "seconds": {
                "start": round(started - began, 1),
                "faults": round(stopped - started, 1),
                "judgement": round(time.monotonic() - stopped, 1),
            },
            **judge.counts(),
        }
        return verdict


def _store_lane(pair: StorePair | ClusterCell, phase: Phase) -> Lane:
    return (
        ClusterFaults(pair).lane()
        if isinstance(pair, ClusterCell)
        else StoreFaults(pair, failovers=phase.failovers).lane()
    )


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
    stats: Any = system.pair.primary.client.hgetall(keys.stats())
    return sum(int(value) for name, value in stats.items() if text(name).startswith("pauses|"))


def _operator(system: System) -> dict[str, str]:
    """Return the environment of an operator's commands, which reach the store without the proxy."""
    return system.environ | {"REDIS_URL": system.pair.primary.url}


def _audit(system: System) -> list[str]:
    """Wait until no job is inflight; return what doctor and the search for unowned keys find then."""
    store = system.pair.primary.client
    found = []
    try:
        wait_for(lambda: not store.zcard("penstock:inflight"), "no inflight job", timeout_s=END_WITHIN_S)
    except AssertionError as error:
        found.append(str(error))
    found += [f"invariant {breach.invariant}: {breach.message}" for breach in find_breaches(store, timely=True)]
    found += [f"unowned key: {key}" for key in unowned_keys(store)]
    doctor = subprocess.run(
        [*COMMAND, "doctor"], env=_operator(system), capture_output=True, text=True, timeout=60, check=False
    )
    if doctor.returncode:
        found.append(f"penstock doctor: exit {doctor.returncode}: {doctor.stdout[-2_000:]} {doctor.stderr[-500:]}")
    return found
