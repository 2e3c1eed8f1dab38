"""Tests that the docs name everything that the code offers, and that what they name and link to exists."""

import re
import tomllib
from pathlib import Path

import pytest
import typer.main

from shared.cli import command_line
from shared.jobs.outcomes import EndCode, Refusal
from shared.jobs.states import ARROWS, Arrow, JobState
from shared.metrics.fleet import FLEET
from shared.metrics.process import PROCESS
from shared.store.keys import TABLE
from tools.generated_pages import pages
from workers.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]
TOP_LEVEL = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md", "shared/lua/README.md")
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")}
PAGES |= {name: (ROOT / name).read_text(encoding="utf-8") for name in TOP_LEVEL}
EVERYTHING = "\n".join(PAGES.values())


def missing(names: list[str], text: str) -> list[str]:
    """Return the names that do not occur in the text as whole words."""
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]


def test_the_generated_pages_match_the_code():
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run `make docs`: {path.name} differs"


def test_every_key_is_explained():
    assert missing([key.prefix.rstrip(":") for key in TABLE.values()], PAGES["docs/keys.md"]) == []


def test_every_state_and_every_arrow_is_explained():
    page = PAGES["docs/states.md"]
    assert missing([state.value for state in JobState], page) == []
    for arrow in Arrow:
        source, target = ARROWS[arrow]
        row = rf"^\| (\w, )*{arrow.value}(, \w)* \|"
        assert re.search(row, page, re.MULTILINE), f"arrow {arrow} ({source} to {target})"


def test_every_refusal_reason_and_every_end_code_is_explained():
    page = PAGES["docs/http.md"]
    assert missing([refusal.value for refusal in Refusal], page) == []
    assert missing([code.value for code in EndCode], page) == []


def test_every_command_is_explained():
    group = typer.main.get_command(command_line.app)
    names = [f"penstock {name}" for name in group.commands]  # type: ignore[attr-defined]  # the app is a group
    assert missing(names, EVERYTHING) == []


def test_every_metric_is_explained():
    names = [f"{row.name}{'_total' if row.kind == 'counter' else ''}" for row in (*FLEET, *PROCESS)]
    assert missing(names, PAGES["docs/metrics.md"]) == []


def test_every_exit_code_of_a_worker_is_explained():
    page = PAGES["docs/runbook.md"]
    for code in ExitCode:
        assert re.search(rf"^\| ?{code.value} ?\|.*{code.name}", page, re.MULTILINE), code


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_of_a_page_leads_to_a_file(name):
    targets = re.findall(r"\]\(([^)\s]+)\)", PAGES[name])
    here = (ROOT / name).parent
    dead = [target for target in targets if "://" not in target and not (here / target.partition("#")[0]).exists()]
    assert dead == []


def test_every_setting_that_the_docs_name_exists():
    known = {match for text in pages().values() for match in re.findall(r"PENSTOCK_[A-Z_]+", text)}
    named = set(re.findall(r"PENSTOCK_[A-Z][A-Z_]+[A-Z]", EVERYTHING))
    assert named - known == set()


def files_named(page: str) -> list[str]:
    return re.findall(r"`((?:web|workers|shared|tests|docs|bench|tools)/[\w/.-]+)`", page)


def test_the_contributors_page_names_more_than_thirty_files():
    assert len(files_named(PAGES["CONTRIBUTING.md"])) > 30


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_a_page_names_exists(name):
    assert [path for path in files_named(PAGES[name]) if not (ROOT / path).exists()] == []


NAMED_TEST = re.compile(r"`(tests/[\w/.-]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("name", PAGES)
def test_every_test_that_a_page_names_exists(name):
    """Pages name a test as `tests/<path>.py::test_<name>`."""
    named = NAMED_TEST.findall(PAGES[name])
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in named if (ROOT / file).exists()}
    assert [f"{file}::{test}" for file, test in named if f"def {test}(" not in sources.get(file, "")] == []


def promises(page: str) -> list[str]:
    """Return the rows of the tables whose last column is headed `held by` or `test`."""
    tables = re.findall(r"^\|.*\| (?:held by|test) \|\n\|[-| ]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [row for table in tables for row in table.splitlines()]


@pytest.mark.parametrize("name", PAGES)
def test_every_promise_names_a_test_that_holds_it(name):
    assert [row for row in promises(PAGES[name]) if not NAMED_TEST.search(row)] == []


@pytest.mark.parametrize("name", ["docs/guarantees.md", "docs/security.md"])
def test_the_guarantees_and_the_threat_model_are_such_promises(name):
    assert len(promises(PAGES[name])) > 15


def test_the_index_of_the_docs_links_to_every_page():
    index = PAGES["docs/README.md"]
    pages = [path.name for path in ROOT.glob("docs/*.md") if path.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in index] == []


def test_every_package_of_the_door_is_in_an_import_contract_and_on_the_contributors_page():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (web,) = (contract for contract in contracts if contract.get("containers") == ["web"])
    placed = {name for layer in web["layers"] for name in re.split(r"[ |:]+", layer)}
    packages = {path.parent.name for path in ROOT.glob("web/*/__init__.py")}
    assert packages <= placed
    assert missing(sorted(packages), PAGES["CONTRIBUTING.md"]) == []
