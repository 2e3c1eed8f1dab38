"""No setting of the person who runs the tests reaches them: neither by the environment nor by a `.env`."""

import sys
from pathlib import Path

from shared.settings.settings import load_with_origin
from tests.support.processes import Stage, wait_for
from tests.support.program import ROOT, program

#: What a program on a stage is told: where each setting comes from.
ORIGINS = """
from shared.settings.settings import load_with_origin
print('origins', sorted(set(load_with_origin()[1].values())), flush=True)
"""


def test_no_test_runs_where_a_developer_keeps_settings():
    assert Path.cwd() != ROOT
    assert not Path(".env").exists()
    assert ".env" not in load_with_origin({})[1].values()


def test_nor_does_a_program_of_the_tests(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "shout")
    with Stage(tmp_path) as stage:
        process = stage.start("origins", [sys.executable, "-c", ORIGINS])
        wait_for(lambda: process.said("origins"), "it to say")
        assert process.said("origins") == ["origins ['default', 'environment']"]
    done = program(tmp_path)("config", "--json")
    assert done.returncode == 0, done.stderr
    assert ".env" not in done.stdout
