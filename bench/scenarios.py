"""Compares Penstock with the rival designs in the scenarios of bench/README.md, in virtual time over the real scripts.

Run: `python -m bench.scenarios [--jobs 2] [--only heavy-tail,two-models] [--systems ours,RR] [--seeds 11,12]`, or with
`--sweep` to try the rivals' bounds. Each run is stored in build/scenarios/ as soon as it ends, and is not repeated
while the code that it used is unchanged, so an interrupted command can be continued. The tables are printed and
written with all figures and a picture to bench/results/.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.common import RESULTS, environment, print_environment, private_store, write_results
from bench.sim.rivals.catalogue import RIVALS
from bench.sim.stress import table
from bench.sim.stress.cases import CASES
from bench.sim.stress.runs import OURS, capacity, run_figures

#: Bounds are chosen with the first seeds and the scenarios are reported with the others.
SWEEP_SEEDS, SEEDS = range(1, 6), range(11, 16)
SWEEP_CASES = ("usual-1.5x", "usual-3x", "usual-10x")
#: Length of a run of the sweep.
SWEEP_S = 75.0
_ROOT = Path(__file__).parents[1]
_KEPT = _ROOT / "build" / "scenarios"
#: The files that all runs depend on, those that only runs of Penstock depend on, and those that no run depends on.
_CODE = ("bench/sim/*.py", "bench/sim/rivals/*.py", "bench/sim/stress/*.py", "workers/engine/*.py")
_CODE_OF_OURS = (
    "bench/sim/ours.py",
    "shared/**/*.lua",
    "shared/**/*.py",
    "web/api/*.py",
    "workers/duties/throughput.py",
)
_WITHOUT_EFFECT = {
    "ours.py",
    "catalogue.py",
    "table.py",
    "picture.py",
    "report.py",
    "rows.py",
    "record.py",
    "yard.py",
    "fairness.py",
}


@dataclass(frozen=True)
class Task:
    """One run. `bound` and `seconds` are given only in a sweep."""

    case: str
    system: str
    seed: int
    bound: float | None = None
    seconds: float | None = None
    #: The setting PENSTOCK_PREEMPTION of Penstock, "" for its default.
    preemption: str = ""

    @property
    def path(self) -> Path:
        """The file of the run's figures. Its folder's name changes with the code."""
        if self.system == OURS:
            name = f"{self.case}.{self.system}{self.preemption and '-'}{self.preemption}.{self.seed}.json"
            return _KEPT / f"{_digest(_CODE)}-{_digest(_CODE_OF_OURS)}" / name
        bound = RIVALS[self.system].best if self.bound is None else self.bound
        seconds = "" if self.seconds is None else f".{self.seconds:g}s"
        return _KEPT / _digest(_CODE) / f"{self.case}.{self.system}.{bound:g}{seconds}.{self.seed}.json"

    def run(self, capacity_wtps: dict[str, float]) -> dict[str, Any]:
        """Run the task and return its figures."""
        return run_figures(
            CASES[self.case],
            self.system,
            self.seed,
            capacity_wtps,
            bound=self.bound,
            seconds=self.seconds,
            environ={"PENSTOCK_PREEMPTION": self.preemption} if self.preemption else None,
        )


def _capacity(case: str) -> dict[str, float]:
    return capacity(CASES[case])


def run_all(tasks: list[Task], jobs: int) -> dict[Task, dict[str, Any]]:
    """Return the figures of all tasks; run those that are not stored, `jobs` at a time, or none if `jobs` is 0."""
    paths = {task: task.path for task in tasks}
    done = {task: json.loads(path.read_text()) for task, path in paths.items() if path.exists()}
    left = [task for task in tasks if task not in done]
    print(f"# {len(done)} runs are stored, {len(left)} are not", flush=True)
    if not jobs:
        return done
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        cases = list(dict.fromkeys(task.case for task in left))
        capacities = dict(zip(cases, pool.map(_capacity, cases), strict=True))
        futures = {pool.submit(task.run, capacities[task.case]): task for task in left}
        for count, future in enumerate(as_completed(futures), 1):
            task, got = futures[future], future.result()
            paths[task].parent.mkdir(parents=True, exist_ok=True)
            paths[task].write_text(json.dumps(got))
            done[task] = got
            bound = "" if task.bound is None else f" {task.bound:g}"
            print(
                f"# {count} of {len(left)}: {task.case} {task.system}{bound} seed {task.seed}: useful "
                f"{got['useful']:.3f} light {got['light']:.3f} kept {got['kept']:.3f} waste {got['waste']:.3f}",
                flush=True,
            )
    return done


def sweep(names: Iterable[str], seeds: Iterable[int], jobs: int) -> dict[str, dict[float, list[dict[str, Any]]]]:
    """Return the figures of all runs for each bound of the named rivals."""
    tasks = [
        Task(case, name, seed, bound, SWEEP_S)
        for name in names
        for bound in RIVALS[name].bounds
        for case in SWEEP_CASES
        for seed in seeds
    ]
    done = run_all(tasks, jobs)
    made: dict[str, dict[float, list[dict[str, Any]]]] = {}
    for task in tasks:
        assert task.bound is not None
        if task in done:
            made.setdefault(task.system, {}).setdefault(task.bound, []).append(done[task])
    return made


def compare(cases: list[str], systems: list[str], seeds: Iterable[int], jobs: int, preemption: str = "") -> table.Runs:
    """Return the figures of all runs of the comparison."""
    tasks = [
        Task(case, system, seed, preemption=preemption if system == OURS else "")
        for seed in seeds
        for case in cases
        for system in systems
    ]
    runs: table.Runs = {}
    for task, got in run_all(tasks, jobs).items():
        runs.setdefault((task.case, task.system), {})[task.seed] = got
    return runs


def main() -> None:
    """Print the environment, run what is missing, and write the tables, the figures and the picture."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=2, help="runs at the same time; 0: only what is stored")
    options.add_argument("--only", default=",".join(CASES), help="names of scenarios")
    options.add_argument("--systems", default="", help="ours and names of rivals; by default the columns of the table")
    options.add_argument("--seeds", default="", help="by default 11 to 15, in a sweep 1 to 5")
    options.add_argument("--sweep", action="store_true", help="try the rivals' bounds instead of comparing")
    options.add_argument("--preemption", default="", choices=("", "on", "off"), help="PENSTOCK_PREEMPTION of ours")
    options.add_argument("--name", default="", help="name of the files in bench/results/")
    chosen = options.parse_args()
    seeds = [int(seed) for seed in chosen.seeds.split(",") if seed] or list(SWEEP_SEEDS if chosen.sweep else SEEDS)
    systems = chosen.systems.split(",") if chosen.systems else list(RIVALS if chosen.sweep else table.SYSTEMS)
    name = chosen.name or ("scenarios-sweep" if chosen.sweep else "scenarios")
    with private_store() as client:
        facts = environment(seeds[0], client)
    facts |= {"seeds": seeds} | ({"preemption": chosen.preemption} if chosen.preemption else {})
    print_environment(facts)
    begin = time.perf_counter()
    if chosen.sweep:
        swept = sweep([system for system in systems if system in RIVALS], seeds, chosen.jobs)
        tables = table.sweep_markdown(swept)
        figures: Any = {system: {f"{bound:g}": got for bound, got in by.items()} for system, by in swept.items()}
    else:
        runs = compare(chosen.only.split(","), systems, seeds, chosen.jobs, chosen.preemption)
        tables = table.markdown(runs)
        figures = {f"{case} {system}": by_seed for (case, system), by_seed in runs.items()}
        RESULTS.mkdir(exist_ok=True)
        from bench.sim.stress.picture import draw  # noqa: PLC0415 - tests import this module without matplotlib

        draw(runs, RESULTS / f"{facts['date'][:10]}-{name}.png")
    facts["wall_s"] = round(time.perf_counter() - begin)
    write_results(name, facts, figures)
    print(tables)


@cache
def _digest(patterns: tuple[str, ...]) -> str:
    """Return the first characters of a hash of all files that match. A pattern with `*` skips those without effect."""
    hashed = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(_ROOT.glob(pattern)):
            if "*" not in pattern or path.name not in _WITHOUT_EFFECT:
                hashed.update(path.read_bytes())
    return hashed.hexdigest()[:12]


if __name__ == "__main__":
    main()
