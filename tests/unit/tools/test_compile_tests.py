"""pytest uses the test files that `make test` has compiled."""

import os
import subprocess
import sys
from pathlib import Path

from tools.compile_tests import compile_test, stale

EXAMPLE = """
def test_one():
    one = 1
    assert one == 2
"""


def test_a_compiled_file_is_not_stale_until_it_changes(tmp_path: Path) -> None:
    test, helper = tmp_path / "test_one.py", tmp_path / "helper.py"
    test.write_text(EXAMPLE)
    helper.write_text(EXAMPLE)
    assert list(stale(tmp_path)) == [test]
    compile_test(test)
    assert list(stale(tmp_path)) == []
    test.write_text(EXAMPLE.replace("2", "3"))
    assert list(stale(tmp_path)) == [test]


def test_pytest_runs_the_compiled_file_and_shows_the_values_of_a_failed_assertion(tmp_path: Path) -> None:
    test = tmp_path / "test_one.py"
    test.write_text(EXAMPLE)
    compile_test(test)
    (kept,) = (tmp_path / "__pycache__").iterdir()
    before = kept.stat()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(test)]
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert "assert 1 == 2" in done.stdout
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
