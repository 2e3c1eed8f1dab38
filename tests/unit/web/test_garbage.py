"""Doors and gates load their modules without the garbage collector, which then runs but does not visit these."""

import subprocess
import sys

import pytest

from tests.support.program import ROOT, program


@pytest.mark.parametrize("module", ["web.gunicorn_conf", "web.gate.__main__"])
def test_the_collector_runs_and_passes_over_the_modules(module, tmp_path):
    code = f"import gc, {module}; print(gc.isenabled(), gc.get_freeze_count() > 10 * len(gc.get_objects()))"
    environ = dict(program(tmp_path, REDIS_URL="redis://127.0.0.1:1").environ)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True\n"
