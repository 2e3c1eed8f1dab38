"""docs/tutorial.md works as printed: its commands run in order in two shells, and print what it shows."""

import re
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.shown_commands import blocks, first_shell, prepare, run_second_shell, steps

pytestmark = pytest.mark.minutes

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FIRST_SHELL, *SECOND_SHELL = blocks(PAGE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the reader works. The page's own lines set the state folder and PENSTOCK_AUTH."""
    return prepare(tmp_path, "examples")


@pytest.mark.timeout(1800)
def test_the_commands_of_the_tutorial_work_as_printed(folder: Path) -> None:
    port = free_port()
    wanted = [step for block in SECOND_SHELL for step in steps(block)]
    assert len(wanted) > 30
    with first_shell(folder, port, FIRST_SHELL):
        run_second_shell(folder, port, wanted)
    assert (folder / "usage.csv").read_text().count("\n") > 3


def test_nothing_of_the_page_is_outside_of_the_two_shells() -> None:
    assert len(re.findall(r"^```", PAGE, re.MULTILINE)) == 2 * (1 + len(SECOND_SHELL))


def test_what_the_page_makes_cannot_be_committed_by_mistake() -> None:
    (folder,) = re.findall(r"PENSTOCK_STATE_DIR=\$PWD/(\w+) ", FIRST_SHELL)
    (report,) = re.findall(r" > (\S+\.csv)$", PAGE, re.MULTILINE)
    assert {f"/{folder}/", f"/{report}"} <= set((ROOT / ".gitignore").read_text().splitlines())
