"""Saves a run's arrivals and replays them under other settings, in virtual time over the real scripts.

python -m bench.replay save FILE --load 2 --seconds 120     saves a synthesized plan like those of E1
python -m bench.replay save FILE --redis URL                saves the jobs of a real store that can still be read
python -m bench.replay run FILE [--system B4] [--set PENSTOCK_MAX_WAIT_MS=4000 …] [--faster 2]
"""

import argparse
from dataclasses import replace
from pathlib import Path

from bench.common import environment, print_environment
from bench.sim.arrivals import plan
from bench.sim.ledger import Window, summary
from bench.sim.record import from_store, recorded, save
from bench.sim.yard import closed_loop, run
from shared.store.connection import open_client

SEED = 11


def main() -> None:
    """Run the command `save` or `run`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save")
    saving.add_argument("file", type=Path)
    saving.add_argument("--redis", default="")
    saving.add_argument("--load", type=float, default=2.0, help="multiple of the capacity")
    saving.add_argument("--seconds", type=float, default=120.0)
    replaying = commands.add_parser("run")
    replaying.add_argument("file", type=Path)
    replaying.add_argument("--system", default="ours")
    replaying.add_argument("--set", action="append", default=[], metavar="PENSTOCK_NAME=VALUE")
    replaying.add_argument("--faster", type=float, default=1.0, help="compress the arrivals in time by this factor")
    replaying.add_argument("--workers", type=int, default=4)
    chosen = parser.parse_args()
    if chosen.command == "save":
        print(f"{_save(chosen)} sends in {chosen.file}")
    else:
        _replay(chosen)


def _save(chosen: argparse.Namespace) -> int:
    if chosen.redis:
        with open_client(chosen.redis, name="penstock-bench") as client:
            return save(from_store(client), chosen.file)
    basis = closed_loop(SEED)
    crowd = replace(basis, one_x_per_s=basis.capacity_per_s).crowd(chosen.load)
    return save(plan(crowd, chosen.seconds, SEED), chosen.file)


def _replay(chosen: argparse.Namespace) -> None:
    jobs = recorded(chosen.file)
    for job in jobs:
        job.at_ms /= chosen.faster
    environ = dict(setting.split("=", 1) for setting in chosen.set)
    print_environment(environment(SEED) | {"file": chosen.file.name, "sends": len(jobs), "settings": environ})
    basis = replace(closed_loop(SEED, workers=chosen.workers), environ=environ)
    # The run continues for 10 s after the last arrival, so that its jobs can end. The first sixth is warm-up.
    seconds = jobs[-1].at_ms / 1_000 + 10
    done = run(basis, chosen.system, jobs, seconds)
    figures = summary(done, Window(seconds / 6 * 1_000, seconds * 1_000), basis.capacity_wtps)
    del figures["tenants"]
    for name, value in figures.items():
        print(f"{name:20} {value:.3f}" if isinstance(value, float) else f"{name:20} {value}")


if __name__ == "__main__":
    main()
