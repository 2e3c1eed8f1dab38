"""Fairness alone: E2's named scenarios and random ones, in virtual time over the real scripts.

Run: `python -m bench.fairness` (1,000 random scenarios; `--random N`). Each must keep the difference in service
of any two tenants that both wait within 2·max(w_p·L, w_q·M) + κ; docs/overload.md says what the letters are.
"""

import argparse

from bench.common import environment, private_store, show
from bench.overload import run_tasks
from bench.sim.experiments import e2
from bench.sim.report import print_table
from bench.sim.yard import closed_loop


def main() -> None:
    """Environment first, then the scenarios."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--random", type=int, default=e2.RANDOM, help="random scenarios, in hundreds")
    chosen = options.parse_args()
    with private_store() as client:
        show(environment(0, client))
    tasks = [task for task in e2.tasks() if task.key[0] == "named" or task.key[1] < chosen.random]
    print_table(e2.rows(run_tasks(tasks, closed_loop(0))["E2"]))


if __name__ == "__main__":
    main()
