"""Every client of `make clients` has a script and a lock file, and docs/clients.md names the locked version."""

import json
import re
from pathlib import Path

import pytest

from tests.clients.__main__ import MODELS
from tests.clients.installed import CODING, FOLDER, NODE, OURS, PYTHON, locked_versions
from tests.clients.table import KNOWN_MISSES, Table

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*PYTHON, *NODE, *CODING])
def test_the_page_names_the_locked_version_of_a_client(name: str) -> None:
    assert re.search(rf"(?<![\w.]){re.escape(locked_versions()[name])}(?![\w.]*\d)", PAGE)


@pytest.mark.parametrize("name", PYTHON)
def test_a_client_for_python_has_a_script(name: str) -> None:
    assert (FOLDER / "scripts" / f"{name}_client.py").is_file()


@pytest.mark.parametrize("name", OURS)
def test_checks_of_our_own_have_a_script(name: str) -> None:
    assert (FOLDER / "scripts" / f"{name}.py").is_file()


@pytest.mark.parametrize("name", NODE)
def test_a_client_for_node_has_a_script(name: str) -> None:
    assert (FOLDER / "node" / f"{name.removesuffix('_node')}_client.mjs").is_file()


@pytest.mark.parametrize("folder", ["node", "coding"])
def test_the_lock_files_for_node_name_no_registry(folder: str) -> None:
    packages = json.loads((FOLDER / folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert not any("resolved" in package for package in packages.values())


def test_only_a_miss_that_is_not_known_fails_the_run() -> None:
    (model, client, name), reason = next(iter(KNOWN_MISSES.items()))
    table = Table()
    table.add(model, client, [{"check": name, "error": "refused"}, {"check": "another", "error": None}])
    assert table.failed == 0
    assert f"| {model} | {client} | {name} | known | {reason} |" in table.lines()
    table.add("another", client, [{"check": name, "error": "a | b\n c"}])
    assert table.failed == 1
    assert f"| another | {client} | {name} | failed | a \\| b c |" in table.lines()
    assert f"| {client} | 1 of 2 | 0 of 1 |" in table.lines()


def test_each_known_miss_names_a_client_and_a_model() -> None:
    for model, client, _ in KNOWN_MISSES:
        assert client in MODELS[model]
