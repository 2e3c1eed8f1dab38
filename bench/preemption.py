"""Measures what pauses cost: the same load with and without preemption, on few slots and on many, in virtual time.

Run: `python -m bench.preemption [--jobs 2] [--seeds 11,12,13]`. The tenants and jobs are those of E1. For each size of
the fleet and each load, the program prints useful work, waste, kept promises, the light tenants' success, and how often
the job that was paused most was paused. The figures are printed and written to bench/results/.
"""

from statistics import median
from typing import Any

from bench.common import private_store
from bench.seeded_runs import Found, SeededRuns
from bench.sim.asks import MODEL
from bench.sim.ledger import Window
from bench.sim.machine import Machine
from bench.sim.ours import PenstockSystem
from bench.sim.simulation import Simulation
from bench.sim.stress.cases import WARM_UP_S, Case
from bench.sim.stress.figures import figures
from bench.sim.stress.runs import capacity, case_jobs, workers_of
from bench.sim.stress.streams import zipf

_SHOWN = ("useful", "waste", "kept", "light", "most_pauses")
_LOADS, _FLEETS = (1.5, 3.0), ((1, 4), (1, 8), (1, 32), (4, 32))
CASES = {
    f"{load:g}x, {workers} x {slots} slots": Case(
        "usual",
        "",
        tuple(zipf(50, 5)),
        ((load, 90.0),),
        {MODEL: (Machine(slots=slots, cells=slots * 4_096),) * workers},
    )
    for load in _LOADS
    for workers, slots in _FLEETS
}


def _run(name: str, preemption: str, seed: int) -> dict[str, Any]:
    """Return the figures of one run, with the number of pauses of the job that was paused most."""
    case = CASES[name]
    capacity_wtps = capacity(case)
    jobs = case_jobs(case, seed, capacity_wtps)
    with private_store() as store:
        # A simulation cannot lose power, and the cost of writing to disk is not measured.
        store.config_set("appendonly", "no")
        system = PenstockSystem(store, {"PENSTOCK_PREEMPTION": preemption})
        run = Simulation(
            system, jobs, client=case.client, seconds=case.seconds, seed=seed, workers=workers_of(case)
        ).run()
    found = figures(run, Window(1_000 * WARM_UP_S, 1_000 * run.seconds), capacity_wtps)
    return found | {"most_pauses": max(job.pauses for job in run.jobs)}


def _print_table(found: Found) -> None:
    print("| fleet and load | " + " | ".join(_SHOWN) + " |\n" + "|---" * (1 + len(_SHOWN)) + "|")
    for name, by_seed in found.items():
        cells = [f"{median(of_seed[kind] for of_seed in by_seed.values()):.3f}" for kind in _SHOWN]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run all cases with all seeds, print the medians, and write the figures."""
    cases = {f"{name}, {preemption}": (name, preemption) for name in CASES for preemption in ("off", "auto")}
    SeededRuns("preemption", cases, _run, _SHOWN, _print_table).main(__doc__, seeds="11,12,13")


if __name__ == "__main__":
    main()
