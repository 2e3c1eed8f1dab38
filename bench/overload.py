"""Runs the overload experiments E1 to E8 for Penstock and the baselines, in virtual time over the real scripts.

Run: `python -m bench.overload` (one seed), `--full` (three seeds), `--seeds 11,15`, `--only E1,E3`, or `--draw FILE`
(only the pictures of an earlier result). docs/overload.md explains the figures and what they do not show. The results
are JSON, PNG and one HTML page in bench/results/.
"""

import argparse
import gzip
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.common import RESULTS, environment, print_environment, private_store, write_results
from bench.sim.experiments import (
    abandoned_jobs,
    noisy_neighbor,
    open_loop,
    published_traces,
    recovery,
    retries,
    service_gap,
    ten_thousand_tenants,
)
from bench.sim.report import Results, draw, print_table, results_of, write_html
from bench.sim.rows import Figures, Row, Task
from bench.sim.yard import Basis, closed_loop, measure

EXPERIMENTS: dict[str, Any] = {
    "E1": open_loop,
    "E2": service_gap,
    "E3": noisy_neighbor,
    "E4": abandoned_jobs,
    "E5": recovery,
    "E6": retries,
    "E7": published_traces,
    "E8": ten_thousand_tenants,
}
SEEDS = (11, 12, 13)


def _timed(task: Task, basis: Basis) -> tuple[Figures, float]:
    begin = time.perf_counter()
    return task.run(basis), time.perf_counter() - begin


def _numbers_line(figures: Figures) -> str:
    """Return the figures that are plain numbers as one line, to show the progress of a long run."""
    return " ".join(f"{name}={value:.3g}" for name, value in figures.items() if isinstance(value, int | float))


def run_tasks(tasks: list[Task], basis: Basis) -> Results:
    """Run all tasks, as many at once as there are cores. Each has its own store and fleet.

    E8 runs last and alone, because it measures µs of real time.
    """
    results: Results = {}

    def done(task: Task, figures: Figures, wall_s: float) -> None:
        results.setdefault(task.experiment, {})[task.key] = figures
        print(
            f"# {task.experiment} {' '.join(map(str, task.key))}: {wall_s:.1f} s; {_numbers_line(figures)}", flush=True
        )

    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        together = [(task, pool.submit(_timed, task, basis)) for task in tasks if task.experiment != "E8"]
        for task, future in together:
            done(task, *future.result())
    for task in tasks:
        if task.experiment == "E8":
            done(task, *_timed(task, basis))
    return results


def one_seed(seed: int, names: list[str], environ: dict[str, str]) -> tuple[Basis, Results, list[Row]]:
    """Run the named experiments with one seed. Return the basis, the figures and the rows of the table."""
    with ProcessPoolExecutor(max_workers=2) as pool:
        basis = measure(
            replace(closed_loop(seed), environ=environ),
            lambda calls: [future.result() for future in [pool.submit(call) for call in calls]],
        )
    print(
        f"# seed {seed}: capacity {basis.capacity_wtps:,.0f} wt/s = {basis.capacity_per_s:.1f} jobs/s; "
        f"1x = {basis.one_x_per_s:.1f} jobs/s; mean residence {basis.residence_ms:.0f} ms",
        flush=True,
    )
    results = run_tasks([task for name in names for task in EXPERIMENTS[name].tasks()], basis)
    return basis, results, [row for name in names for row in EXPERIMENTS[name].rows(results[name])]


def slim(figures: Any, *, whole: bool) -> Any:
    """Return the figures rounded to four decimal places, without the figures by tenant unless `whole`."""
    if isinstance(figures, dict):
        return {name: slim(value, whole=whole) for name, value in figures.items() if whole or name != "tenants"}
    if isinstance(figures, list):
        return [slim(value, whole=whole) for value in figures]
    return round(figures, 4) if isinstance(figures, float) else figures


def draw_again(path: Path) -> None:
    """Draw the pictures of an earlier result again, beside its file."""
    data = path.read_bytes()
    figures = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["figures"]
    for seed, kept in figures.items():
        draw(results_of(kept["results"]), path.with_name(f"{path.name.partition('.')[0]}-seed{seed}.png"))


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds of a list with commas. Raises ValueError, as argparse expects it."""
    return tuple(int(seed) for seed in text.split(","))


def main() -> None:
    """Print the environment, run the experiments, write the results and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--full", action="store_true", help="run three seeds instead of one")
    options.add_argument("--seeds", type=seeds_of, help="the seeds instead of one, such as 11,12")
    options.add_argument("--only", default=",".join(EXPERIMENTS))
    options.add_argument(
        "--set", action="append", default=[], metavar="PENSTOCK_NAME=VALUE", help="a setting of Penstock"
    )
    options.add_argument("--name", default="overload", help="name of the files in bench/results/")
    options.add_argument("--draw", metavar="FILE", help="only draw the pictures of an earlier result again")
    chosen = options.parse_args()
    if chosen.draw:
        draw_again(Path(chosen.draw))
        return
    seeds = chosen.seeds or (SEEDS if chosen.full else SEEDS[:1])
    environ = dict(setting.split("=", 1) for setting in chosen.set)
    begin = time.perf_counter()
    with private_store() as client:
        facts = environment(seeds[0], client)
    facts |= {"seeds": seeds, "settings": environ or "all at their defaults"}
    print_environment(facts)
    kept: dict[str, Any] = {}
    tables: dict[str, list[Row]] = {}
    pictures = {}
    stem = f"{facts['date'][:10]}-{chosen.name}"
    RESULTS.mkdir(exist_ok=True)
    for seed in seeds:
        basis, results, rows = one_seed(seed, chosen.only.split(","), environ)
        tables[str(seed)] = rows
        kept[str(seed)] = {
            "basis": {name: value for name, value in vars(basis).items() if isinstance(value, int | float)},
            "results": {
                name: {" ".join(map(str, key)): figures for key, figures in got.items()}
                for name, got in results.items()
            },
            "rows": [vars(row) for row in rows],
        }
        picture = draw(results, RESULTS / f"{stem}-seed{seed}.png")
        if picture is not None:
            pictures[str(seed)] = picture
    facts["wall_s"] = round(time.perf_counter() - begin)
    write_results(chosen.name, facts, kept)
    write_html(RESULTS / f"{stem}.html", facts, tables, pictures)
    for seed_name, rows in tables.items():
        print(f"\nseed {seed_name}")
        print_table(rows)


if __name__ == "__main__":
    main()
