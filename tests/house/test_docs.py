"""What the code offers stands in the docs, under its own name; what the docs link to is there."""

import re
from pathlib import Path

import pytest
import typer.main

from shared import cli, metrics
from shared.jobs.outcomes import EndCode, Refusal
from shared.jobs.states import ARROWS, Arrow, JobState
from shared.store.keys import TABLE
from tools.generated_pages import pages
from workers.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/**/*.md")}
PAGES |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CHANGELOG.md")}
EVERYTHING = "\n".join(PAGES.values())


def missing(names: list[str], text: str) -> list[str]:
    """The names that do not stand in the text as words of their own."""
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]


def test_what_the_docs_repeat_is_what_the_code_says():
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run `make docs`: {path.name} differs"


def test_every_key_is_explained():
    assert missing([key.prefix.rstrip(":") for key in TABLE], PAGES["docs/keys.md"]) == []


def test_every_state_and_every_arrow_is_explained():
    page = PAGES["docs/states.md"]
    assert missing([state.value for state in JobState], page) == []
    for arrow in Arrow:
        source, target = ARROWS[arrow]
        row = rf"^\| (\w, )*{arrow.value}(, \w)* \|"
        assert re.search(row, page, re.MULTILINE), f"arrow {arrow} ({source} to {target})"


def test_every_refusal_and_every_code_of_an_end_is_explained():
    page = PAGES["docs/http.md"]
    assert missing([refusal.value for refusal in Refusal], page) == []
    assert missing([code.value for code in EndCode], page) == []


def test_every_command_is_explained():
    group = typer.main.get_command(cli.app)
    names = [f"penstock {name}" for name in group.commands]  # type: ignore[attr-defined]  # the app is a group
    assert missing(names, EVERYTHING) == []


def test_every_metric_is_explained():
    rows = [row for table in vars(metrics).values() if isinstance(table, tuple) for row in table]
    names = [row.name for row in rows if isinstance(row, metrics.MetricSpec)]
    assert names
    assert [name for name in names if name not in EVERYTHING] == []


def test_every_exit_code_of_a_worker_is_explained():
    page = PAGES["docs/runbook.md"]
    for code in ExitCode:
        assert re.search(rf"^\| ?{code.value} ?\|.*{code.name}", page, re.MULTILINE), code


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_somewhere(name):
    targets = re.findall(r"\]\(([^)\s]+)\)", PAGES[name])
    here = (ROOT / name).parent
    dead = [target for target in targets if "://" not in target and not (here / target.partition("#")[0]).exists()]
    assert dead == []


def test_every_setting_named_anywhere_exists():
    known = {match for text in pages().values() for match in re.findall(r"PENSTOCK_[A-Z_]+", text)}
    named = set(re.findall(r"PENSTOCK_[A-Z][A-Z_]+[A-Z]", EVERYTHING))
    assert named - known == set()
