"""Measures how often clients that obey their retry hints are admitted when they come back, in virtual time.

Run: `python -m bench.returns [--jobs 2] [--seeds 11,12]`. The clients are those of the OpenAI package with two retries.
Two fleets get a steady overload of 1.5 times their capacity, and a burst of 10 times for 15 s between times of .7. The
figures are printed and written to bench/results/.
"""

from statistics import median
from typing import Any

from bench.seeded_runs import Found, SeededRuns
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


def _print_table(found: Found) -> None:
    print("| figure | " + " | ".join(found) + " |")
    print("|---" * (1 + len(found)) + "|")
    for figure in _SHOWN:
        values = [[of_seed[figure] for of_seed in by_seed.values()] for by_seed in found.values()]
        cells = [f"{median(seen):.2f} ({min(seen):.2f} to {max(seen):.2f})" for seen in values]
        print(f"| {figure} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run all cases with all seeds; print the medians with the worst seeds, and write the figures."""
    cases = {name: (name,) for name in CASES}
    SeededRuns("returns", cases, _run, _SHOWN, _print_table).main(__doc__, seeds="11,12,13,14,15")


if __name__ == "__main__":
    main()
