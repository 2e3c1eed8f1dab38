"""Runs a scenario with Penstock or with a rival, over a fleet whose capacity is measured with the same jobs."""

from collections.abc import Mapping
from typing import Any

from bench.common import private_store
from bench.sim.asks import SimJob
from bench.sim.clients import OneTry
from bench.sim.fleet import SimWorker
from bench.sim.ledger import Window, computed_wtps
from bench.sim.memory_queue import MemoryQueue
from bench.sim.ours import PenstockSystem
from bench.sim.pools import Pools
from bench.sim.rivals.catalogue import RIVALS
from bench.sim.simulation import Run, Simulation
from bench.sim.stress.cases import WARM_UP_S, Case
from bench.sim.stress.figures import figures
from bench.sim.stress.streams import Stream, mix, plan

OURS = "ours"
#: Length of the closed loop that measures a capacity, and the first part of it that is not counted.
_CAPACITY_S, _CAPACITY_WARM_S = 60.0, 15.0
#: More jobs than a fleet of four workers ends in a closed loop, unless the jobs are tiny.
_CAPACITY_JOBS = 12_000


def workers_of(case: Case, *, heeds_deadlines: bool = True) -> list[SimWorker]:
    """Return the workers of all pools."""
    return [
        SimWorker(f"{model}-w{i}", machine, heeds_deadlines=heeds_deadlines, model=model)
        for model, machines in case.pools.items()
        for i, machine in enumerate(machines)
    ]


def capacity(case: Case) -> dict[str, float]:
    """Return the weighted tokens per second of each model's workers in a closed loop with all slots full.

    The capacity is the same for all seeds, so that their loads are equal.
    """
    return {model: _closed_loop(case, model) for model in case.pools}


def run_figures(
    case: Case,
    system: str,
    seed: int,
    capacity_wtps: Mapping[str, float],
    *,
    bound: float | None = None,
    seconds: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a case and return its figures. `environ` has settings of Penstock that are not the defaults.

    `bound` replaces a rival's best bound; `seconds` cuts the run short.
    """
    jobs = case_jobs(case, seed, capacity_wtps)
    if system == OURS:
        with private_store() as store:
            # A simulation cannot lose power, and the cost of writing to disk is not measured.
            store.config_set("appendonly", "no")
            system_of_ours = PenstockSystem(store, environ)
            system_of_ours.join({stream.tenant: stream.group for stream in case.streams if stream.group})
            run = _simulate(case, system_of_ours, jobs, seed, seconds)
    else:
        run = _simulate(case, _rival(case, system, bound), jobs, seed, seconds)
    window = Window(1_000 * min(WARM_UP_S, run.seconds / 3), 1_000 * run.seconds)
    return figures(run, window, capacity_wtps)


def case_jobs(case: Case, seed: int, capacity_wtps: Mapping[str, float]) -> list[SimJob]:
    """Return the jobs of a case, the same for every system."""
    jobs = plan(case.phases, case.streams, capacity_wtps, case.loads, seed)
    if case.change is not None:
        for job in jobs:
            case.change(job)
    return jobs


def _simulate(case: Case, system: Any, jobs: list[SimJob], seed: int, seconds: float | None) -> Run:
    simulation = Simulation(
        system, jobs, client=case.client, seconds=seconds or case.seconds, seed=seed, workers=workers_of(case)
    )
    if case.events is not None:
        case.events(simulation)
    return simulation.run()


def _rival(case: Case, name: str, bound: float | None) -> Pools:
    rival = RIVALS[name]
    queues: dict[str, MemoryQueue] = {}
    for model, machines in case.pools.items():
        queues[model] = rival.make(rival.best if bound is None else bound, sum(machine.slots for machine in machines))
    return Pools(name, queues)


def _closed_loop(case: Case, model: str) -> float:
    own: list[Stream] = [stream for stream in case.streams if stream.model == model]
    workers = [worker for worker in workers_of(case, heeds_deadlines=False) if worker.model == model]
    simulation = Simulation(
        MemoryQueue("closed loop"),
        mix(own, _CAPACITY_JOBS, seed=0),
        client=OneTry(),
        seconds=_CAPACITY_S,
        seed=0,
        workers=workers,
    )
    return computed_wtps(simulation.run(), Window(1_000 * _CAPACITY_WARM_S, 1_000 * _CAPACITY_S))
