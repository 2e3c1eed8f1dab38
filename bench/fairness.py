"""Runs only the fairness experiment E2: named and random scenarios, in virtual time over the real scripts.

Run: `python -m bench.fairness` (1,000 random scenarios by default; `--random N`). In each scenario, the difference in
service between any two tenants that both have queued jobs must stay within 2·max(w_p·L, w_q·M) + κ. docs/overload.md
defines these symbols.
"""

import argparse

from bench.common import environment, print_environment, private_store
from bench.overload import run_tasks
from bench.sim.experiments import e2
from bench.sim.report import print_table
from bench.sim.yard import closed_loop


def main() -> None:
    """Print the environment, run the scenarios and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--random", type=int, default=e2.RANDOM, help="number of random scenarios, rounded up to hundreds"
    )
    chosen = options.parse_args()
    with private_store() as client:
        print_environment(environment(0, client))
    tasks = [task for task in e2.tasks() if task.key[0] == "named" or task.key[1] < chosen.random]
    print_table(e2.rows(run_tasks(tasks, closed_loop(0))["E2"]))


if __name__ == "__main__":
    main()
