"""Tests of failpoints: a process is killed at the armed point, for the armed job, and nowhere else."""

import signal
import subprocess
import sys

import pytest

from shared.errors import ConfigError
from shared.failpoints import POINTS
from shared.settings.settings import load

PROGRAM = """
import sys
from shared import failpoints
failpoints.arm(sys.argv[1])
failpoints.reach("before_settle", "job1")
failpoints.reach("after_settle", "job2")
print("survived")
"""


def run_with_failpoint(setting: str) -> tuple[int, str]:
    """Run a process with this failpoint. Return its exit code and its output."""
    completed = subprocess.run([sys.executable, "-c", PROGRAM, setting], capture_output=True, text=True, check=False)
    return completed.returncode, completed.stdout.strip()


@pytest.mark.parametrize("setting", ["before_settle", "before_settle@job1", "after_settle@job2"])
def test_the_armed_failpoint_kills_the_process(setting):
    assert run_with_failpoint(setting) == (-signal.SIGKILL, "")


@pytest.mark.parametrize("setting", ["", "after_claim", "before_settle@job2"])
def test_a_process_survives_other_failpoints_and_other_jobs(setting):
    assert run_with_failpoint(setting) == (0, "survived")


@pytest.mark.parametrize("point", POINTS)
def test_the_setting_accepts_every_failpoint_with_or_without_a_job(point):
    assert load(environ={"PENSTOCK_FAIL_AT": point}, dotenv=None).fail_at == point
    assert load(environ={"PENSTOCK_FAIL_AT": f"{point}@a-b_c"}, dotenv=None).fail_at == f"{point}@a-b_c"


def test_an_unknown_failpoint_is_refused():
    with pytest.raises(ConfigError, match="PENSTOCK_FAIL_AT='nowhere'"):
        load(environ={"PENSTOCK_FAIL_AT": "nowhere"}, dotenv=None)
