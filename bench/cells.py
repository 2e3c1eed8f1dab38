"""Simulates many cells with the real scripts, replays some of them alone, and extrapolates to a million jobs a second.

Run: `python -m bench.cells` (all scenarios, about eight minutes of CPU time), `--only zipf-2,cell-lost-2`, or
`--replay` to run only cells picked at random alone, with the offers that were kept in build/cells/. The tables are
printed, and written with all figures and a picture to bench/results/. bench/README.md explains them.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from bench.common import RESULTS, environment, print_environment, write_results
from bench.sim.cells import extrapolation, table
from bench.sim.cells.cases import Case, all_cases
from bench.sim.cells.cell import MACHINE
from bench.sim.cells.deployment import Deployment, stores
from bench.sim.cells.figures import Figures, figures
from bench.sim.cells.recording import keep, replay
from bench.sim.yard import closed_loop

_KEPT = Path(__file__).parents[1] / "build" / "cells"


def run_case(case: Case, capacity_wtps: float, seed: int) -> Figures:
    """Run a scenario, keep what each cell was offered, and return the figures."""
    began_s = time.process_time()
    with stores(len(case.cells)) as clients:
        deployment = Deployment(
            case.cells, clients, case.directory, case.seconds, spills=case.spills, changes=case.changes
        )
        deployed = deployment.run(case.requests(capacity_wtps, seed))
        keep(_KEPT / case.name, deployed)
        return figures(case, deployed, capacity_wtps) | {"cpu_s": time.process_time() - began_s}


def replay_cases(names: list[str], seed: int, picks: int) -> dict[str, dict[str, int]]:
    """Run some cells of each scenario alone. Return for each cell the number of jobs that ended otherwise."""
    got = {}
    for name in names:
        got[name] = replay(_KEPT / name, seed, picks)
        print(f"# {name} alone, jobs that ended otherwise: {got[name]}", flush=True)
    return got


def main() -> None:
    """Print the environment, run what was chosen, and write tables, figures and picture."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", help="names of scenarios")
    options.add_argument("--seed", type=int, default=11)
    options.add_argument("--replay", action="store_true", help="only replay what was kept")
    options.add_argument("--picks", type=int, default=3, help="cells of each scenario that are replayed")
    chosen = options.parse_args()
    cases = all_cases()
    names = chosen.only.split(",") if chosen.only else list(cases)
    if unknown := set(names) - cases.keys():
        options.error(f"--only: no scenario is called {min(unknown)!r}; they are {', '.join(cases)}")
    if not chosen.replay:
        _run_all([cases[name] for name in names], chosen.seed, chosen.picks)
    elif any(sum(by_cell.values()) for by_cell in replay_cases(names, chosen.seed, chosen.picks).values()):
        sys.exit("a cell alone did something else than among the others")


def _run_all(cases: list[Case], seed: int, picks: int) -> None:
    facts = environment(seed)
    basis = closed_loop(seed, workers=1, machine=MACHINE)
    facts["capacity_of_a_worker"] = {"wtps": basis.capacity_wtps, "jobs_per_s": basis.capacity_per_s}
    print_environment(facts)
    got: dict[str, Any] = {}
    for case in cases:
        got[case.name] = run_case(case, basis.capacity_wtps, seed)
        shown = {name: got[case.name][name] for name in ("in_time", "reasons", "lost", "doubled", "breaches", "cpu_s")}
        print(f"# {case.name}: {shown}", flush=True)
    replayed = replay_cases([case.name for case in cases], seed, picks)
    write_results("cells", facts, {"scenarios": got, "replayed_alone": replayed})
    from bench.sim.cells.picture import draw  # noqa: PLC0415 - tests import this module without matplotlib

    draw(got, RESULTS / f"{facts['date'][:10]}-cells.png")
    print(table.markdown(got))
    print(f"\nExtrapolated, not run:\n\n{extrapolation.markdown()}")


if __name__ == "__main__":
    main()
