"""Half a minute of random faults on the system in separate processes, as `make chaos` runs them for longer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT

#: With this seed, the store of the first run is strict, and its faults begin with a kill of the store, a failover and
#: lost answers.
SEED = 554


def chaos(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the program, which must find no anomaly, and return its report."""
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(SEED), *arguments]
    run = subprocess.run(
        [*command, "--folder", str(folder / "run")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout[-9_000:]}\n{run.stderr[-3_000:]}"
    report: dict[str, Any] = json.loads(run.stdout[run.stdout.index("\n{") :])
    return report


@pytest.mark.minutes
@pytest.mark.timeout(900)  # a loaded machine needs most of its time to start processes again
def test_whatever_is_killed_stopped_or_cut_off_every_promise_to_a_client_is_kept(tmp_path: Path) -> None:
    report = chaos(tmp_path, "--minutes", "0.3", "--admission", "full")
    (phase,) = report["phases"]
    assert phase["strict_store"]
    assert phase["acknowledged_jobs"] > 10
    assert sum(phase["faults"].values()) > 5
    assert phase["pauses"] > 0


@pytest.mark.minutes
@pytest.mark.timeout(900)
def test_usage_is_what_the_clients_have_written_down(tmp_path: Path) -> None:
    report = chaos(tmp_path, "--minutes", "0.25", "--no-failovers", "--admission", "bounds")
    (phase,) = report["phases"]
    assert phase["compared_usage"]
    assert phase["acknowledged_jobs"] > 0
    assert sum(phase["faults"].values()) > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_in_a_cluster_whose_slot_moves_every_promise_is_kept_and_usage_is_what_clients_have_written_down(
    tmp_path: Path,
) -> None:
    report = chaos(tmp_path, "--minutes", "0.5", "--cluster", "--admission", "full")
    (phase,) = report["phases"]
    assert phase["compared_usage"]
    assert phase["acknowledged_jobs"] > 10
    assert phase["faults"]["move_slot"] > 3


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("arguments", "cells"), [(("--cells", "4"), 4), (("--cells", "6", "--cluster"), 6)])
def test_while_cells_fail_and_tenants_move_between_them_every_promise_is_kept_and_usage_adds_up(
    tmp_path: Path, arguments: tuple[str, ...], cells: int
) -> None:
    report = chaos(tmp_path, "--minutes", "0.5", "--admission", "bounds", *arguments)
    (phase,) = report["phases"]
    assert phase["compared_usage"]
    assert phase["acknowledged_jobs"] > 10
    assert len(phase["acknowledged_by_cell"]) > cells // 2
    assert phase["faults"]["move_tenant"] > 3
