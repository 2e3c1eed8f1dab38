"""Fail points kill where they are told to, and only there."""

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
print("lived")
"""


def end_of(setting: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, setting], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("setting", ["before_settle", "before_settle@job1", "after_settle@job2"])
def test_the_armed_point_kills(setting):
    assert end_of(setting) == (-signal.SIGKILL, "")


@pytest.mark.parametrize("setting", ["", "after_claim", "before_settle@job2"])
def test_any_other_point_and_any_other_job_is_passed(setting):
    assert end_of(setting) == (0, "lived")


@pytest.mark.parametrize("point", POINTS)
def test_a_point_can_be_set(point):
    assert load(environ={"PENSTOCK_FAIL_AT": point}, dotenv=None).fail_at == point
    assert load(environ={"PENSTOCK_FAIL_AT": f"{point}@a-b_c"}, dotenv=None).fail_at == f"{point}@a-b_c"


def test_a_point_that_nobody_passes_is_refused():
    with pytest.raises(ConfigError, match="PENSTOCK_FAIL_AT='nowhere'"):
        load(environ={"PENSTOCK_FAIL_AT": "nowhere"}, dotenv=None)
