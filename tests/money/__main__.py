"""`make money`: compare every ledger with that of an upstream that misbehaves; exit with 1 if they differ."""

import argparse
import json
import random
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from tests.money.run import Plan, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.money", description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=2_000, help="how many the upstream receives, in both runs together"
    )
    parser.add_argument("--seed", type=int, help="the default is a random one")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    folder, anomalies = Path(tempfile.mkdtemp(prefix="penstock-money-")), 0
    for kills in (False, True):
        name = "kills" if kills else "whole"
        # The stage prints the logs of its processes at its end.
        with (folder / f"{name}.log").open("w") as logs, redirect_stdout(logs):
            verdict = run(Plan(seed, options.requests // 2, kills=kills), folder / name)
        print(json.dumps(verdict.figures | {"anomalies": verdict.anomalies}, indent=1), flush=True)
        anomalies += len(verdict.anomalies)
    if anomalies:
        print(f"{anomalies} anomalies; the logs are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    sys.exit(1 if anomalies else 0)


if __name__ == "__main__":
    main()
