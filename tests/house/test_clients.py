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


KNOWN = {("demo", "a", "one"): "its reason"}


def a_table(*rows: tuple[str, str, str, str | None]) -> Table:
    """Return a table of results: model, client, check and error."""
    table = Table(KNOWN)
    for model, client, check, error in rows:
        table.add(model, client, [{"check": check, "error": error}, {"check": "another", "error": None}])
    return table


def test_a_known_miss_is_shown_with_its_reason_and_does_not_fail_the_run() -> None:
    table = a_table(("demo", "a", "one", "refused"))
    assert table.failed == 0
    assert "| demo | a | one | known | its reason |" in table.lines()
    assert "| a | 1 of 2 |" in table.lines()


@pytest.mark.parametrize(("model", "client", "check"), [("smol", "a", "one"), ("demo", "b", "one"), ("demo", "b", "x")])
def test_a_miss_that_is_not_known_fails_the_run(model: str, client: str, check: str) -> None:
    table = a_table((model, client, check, "a | b\n c"))
    assert table.failed == 1
    assert f"| {model} | {client} | {check} | failed | a \\| b c |" in table.lines()


def test_a_known_miss_that_works_or_does_not_run_fails_the_run() -> None:
    works, not_run = a_table(("demo", "a", "one", None)), a_table(("demo", "a", "renamed", None))
    assert works.failed == not_run.failed == 1
    assert "| demo | a | one | works | no longer misses: its reason |" in works.lines()
    assert "| demo | a | one | not run | a known miss: its reason |" in not_run.lines()


def test_each_known_miss_names_a_client_and_a_model() -> None:
    for model, client, _ in KNOWN_MISSES:
        assert client in MODELS[model]
