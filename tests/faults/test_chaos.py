"""A minute of random faults on the system in separate processes, as `make chaos` runs them for longer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

#: With this seed, both phases begin with a failover, a kill of the store, and lost answers among their faults.
SEED = 405


@pytest.mark.minutes
@pytest.mark.timeout(900)  # a loaded machine needs most of its time to start processes again
def test_whatever_is_killed_stopped_or_cut_off_every_promise_to_a_client_is_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "1", "--seed", str(SEED)]
    run = subprocess.run(
        [*command, "--folder", str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, (run.stdout, run.stderr)
    report = json.loads(run.stdout[run.stdout.index("\n{") :])
    assert [phase["admission"] for phase in report["phases"]] == ["full", "bounds"]
    assert all(phase["acknowledged_jobs"] > 10 for phase in report["phases"])
    assert all(sum(phase["faults"].values()) > 5 for phase in report["phases"])
    assert sum(phase["pauses"] for phase in report["phases"]) > 0
