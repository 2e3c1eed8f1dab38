"""Runs only the fairness experiments E2 and E9, in virtual time over the real scripts.

Run: `python -m bench.fairness` (1,000 random scenarios of E2 by default; `--random N`), with `--preemption off` for E2
without preemption. In each scenario of E2, the difference in service between any two tenants that both have queued or
paused jobs must stay within its bound (docs/fairness.md). E9 has a loud and a quiet tenant.
"""

import argparse
from dataclasses import replace

from bench.common import environment, print_environment, private_store
from bench.overload import run_tasks
from bench.sim.experiments import first_tokens, service_gap
from bench.sim.report import print_table
from bench.sim.yard import closed_loop


def main() -> None:
    """Print the environment, run the scenarios and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--random", type=int, default=service_gap.RANDOM, help="number of random scenarios, rounded up to hundreds"
    )
    options.add_argument("--preemption", choices=("auto", "off"), default="auto", help="in the scenarios of E2")
    chosen = options.parse_args()
    with private_store() as client:
        print_environment(environment(0, client))
    tasks = [task for task in service_gap.tasks() if task.key[0] == "named" or task.key[1] < chosen.random]
    basis = replace(closed_loop(0), environ={"PENSTOCK_PREEMPTION": chosen.preemption})
    got = run_tasks([*tasks, *first_tokens.tasks()], basis)
    print_table([*service_gap.rows(got["E2"]), *first_tokens.rows(got["E9"])])


if __name__ == "__main__":
    main()
