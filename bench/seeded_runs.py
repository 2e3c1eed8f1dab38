"""Runs the cases of a benchmark in virtual time with several seeds, and keeps and prints the figures of each run."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.common import environment, print_environment, private_store, write_results

#: The figures of a run by their names, of each seed, of each case.
Found = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class SeededRuns:
    """A benchmark of several cases: each case is run with each seed, in a process of its own."""

    #: The result's name, as `write_results` takes it.
    name: str
    #: The arguments of each case, without the seed.
    cases: Mapping[str, tuple[Any, ...]]
    #: Returns the figures of one run. It must be a function of a module, because other processes call it.
    run: Callable[..., dict[str, Any]]
    #: The figures that are printed.
    shown: Sequence[str]
    print_table: Callable[[Found], None]

    def main(self, description: str | None, seeds: str) -> None:
        """Read the command line, run all cases with all seeds, print the figures and write them to bench/results."""
        options = argparse.ArgumentParser(description=description)
        options.add_argument("--jobs", type=int, default=2, help="runs at the same time")
        options.add_argument("--seeds", default=seeds)
        options.add_argument("--only", nargs="+", default=list(self.cases), choices=self.cases)
        chosen = options.parse_args()
        numbers = [int(seed) for seed in chosen.seeds.split(",")]
        with private_store() as client:
            facts = environment(numbers[0], client) | {"seeds": numbers}
        print_environment(facts)
        found = self._run_all(chosen.only, numbers, chosen.jobs)
        self.print_table(found)
        write_results(self.name, facts, found)

    def _run_all(self, names: Sequence[str], seeds: Sequence[int], jobs: int) -> Found:
        tasks = [(name, seed) for name in names for seed in seeds]
        arguments = [(*self.cases[name], seed) for name, seed in tasks]
        found: Found = {name: {} for name in names}
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            for (name, seed), got in zip(tasks, pool.map(self.run, *zip(*arguments, strict=True)), strict=True):
                found[name][str(seed)] = got
                print(f"# {name}, seed {seed}:", {figure: round(got[figure], 3) for figure in self.shown}, flush=True)
        return found
