"""Tests that no setting of the developer reaches the tests, neither from the environment nor from a `.env`."""

import sys
from pathlib import Path

from shared.settings.settings import load_with_origin
from tests.support.processes import Stage, wait_for
from tests.support.program import ROOT, program

#: A program that prints where its settings come from.
ORIGINS = """
from shared.settings.settings import load_with_origin
print('origins', sorted(set(load_with_origin()[1].values())), flush=True)
"""


def test_the_tests_run_in_a_folder_without_a_settings_file():
    assert Path.cwd() != ROOT
    assert not Path(".env").exists()
    assert ".env" not in load_with_origin({})[1].values()


def test_a_program_that_a_test_starts_reads_no_settings_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "shout")
    with Stage(tmp_path) as stage:
        process = stage.start("origins", [sys.executable, "-c", ORIGINS])
        wait_for(lambda: process.log_lines("origins"), "the program's output")
        assert process.log_lines("origins") == ["origins ['default', 'environment']"]
    done = program(tmp_path)("config", "--json")
    assert done.returncode == 0, done.stderr
    assert ".env" not in done.stdout
