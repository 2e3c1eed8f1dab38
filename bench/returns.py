"""Measures how often clients that obey their retry hints are admitted when they come back, in virtual time.

Run: `python -m bench.returns [--jobs 2] [--seeds 11,12]`. The clients are those of the OpenAI package with two retries.
Two fleets get a steady overload of 1.5 times their capacity, and a burst of 10 times for 15 s between times of .7. The
figures are printed and written to bench/results/.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from bench.common import environment, print_environment, private_store, write_results
from bench.sim.asks import MODEL
from bench.sim.clients import OpenAIPackage
from bench.sim.machine import Machine
from bench.sim.stress.cases import Case
from bench.sim.stress.runs import OURS, capacity, run_figures
from bench.sim.stress.streams import zipf

_SHOWN = ("returns_admitted", "told", "attempts_per_told", "useful", "light", "success", "kept")
_STEADY, _BURST = ((1.5, 90.0),), ((0.7, 60.0), (10.0, 15.0), (0.7, 60.0))
CASES = {
    f"{name}, {workers} workers": Case(
        name, "", tuple(streams), phases, {MODEL: (Machine(),) * workers}, client=OpenAIPackage(heeds=1.0)
    )
    for name, phases in (("steady 1.5x", _STEADY), ("burst", _BURST))
    for workers, streams in ((1, zipf(20, 2)), (4, zipf(50, 5)))
}


def _run(name: str, seed: int) -> dict[str, Any]:
    case = CASES[name]
    return run_figures(case, OURS, seed, capacity(case))


def main() -> None:
    """Run all cases with all seeds; print the medians with the worst seeds, and write the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    options.add_argument("--seeds", default="11,12,13,14,15")
    options.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    chosen = options.parse_args()
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    with private_store() as client:
        facts = environment(seeds[0], client) | {"seeds": seeds}
    print_environment(facts)
    tasks = [(name, seed) for name in chosen.only for seed in seeds]
    found: dict[str, dict[str, Any]] = {name: {} for name in chosen.only}
    with ProcessPoolExecutor(max_workers=chosen.jobs) as pool:
        for (name, seed), got in zip(tasks, pool.map(_run, *zip(*tasks, strict=True)), strict=True):
            found[name][str(seed)] = got
            print(f"# {name}, seed {seed}:", {figure: round(got[figure], 3) for figure in _SHOWN}, flush=True)
    print("| figure | " + " | ".join(found) + " |")
    print("|---" * (1 + len(found)) + "|")
    for figure in _SHOWN:
        values = [[of_seed[figure] for of_seed in by_seed.values()] for by_seed in found.values()]
        cells = [f"{median(seen):.2f} ({min(seen):.2f} to {max(seen):.2f})" for seen in values]
        print(f"| {figure} | " + " | ".join(cells) + " |")
    write_results("returns", facts, found)


if __name__ == "__main__":
    main()
