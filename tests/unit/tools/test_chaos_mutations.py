"""The planted defects of `make chaos-mutations` still find their place in the code, and the scripts still load."""

import os
import subprocess
import sys

import pytest

from tests.chaos.mutations import DEFECTS, plant

LOAD_ALL = "from shared.store import scripts; print(len([scripts.load(name) for name in scripts.names()]))"


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.partition(":")[0])
def test_a_defect_can_be_planted_in_a_copy_whose_scripts_still_load(defect, tmp_path):
    plant(defect, tmp_path)
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", LOAD_ALL]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
