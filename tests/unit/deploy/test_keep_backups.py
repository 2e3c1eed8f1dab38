"""Tests that a copy of the store is made, that the oldest copies are removed, and that a failure removes none."""

import subprocess
from pathlib import Path

import pytest

from tests.support.program import ROOT

SCRIPT = ROOT / "deploy" / "keep_backups.sh"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a store that writes nothing."""
    folder = tmp_path / "data" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    (folder / "appendonly.aof.1.incr.aof").write_text("written")
    return folder.parent


def keep(data: Path, copies: Path, number: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", SCRIPT, data, copies, number], capture_output=True, text=True, check=False)


def test_the_newest_copies_are_kept_and_nothing_else_is_touched(data: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    for name in ("store-2026-11-26T080000Z", "store-2026-11-27T080000Z", "store-by-hand", "notes"):
        (copies / name).mkdir(parents=True)
    done = keep(data, copies, "2")
    assert done.returncode == 0, done.stderr
    kept = sorted(path.name for path in copies.iterdir())
    assert kept[:2] == ["notes", "store-2026-11-27T080000Z"]
    assert kept[3] == "store-by-hand"
    assert (copies / kept[2] / "appendonlydir" / "appendonly.aof.1.incr.aof").read_text() == "written"


def test_a_copy_that_fails_removes_no_old_one(tmp_path: Path) -> None:
    old = tmp_path / "copies" / "store-2026-11-26T080000Z"
    old.mkdir(parents=True)
    done = keep(tmp_path / "no-store", old.parent, "1")
    assert done.returncode != 0
    assert "this is not the store's folder" in done.stderr
    assert list(old.parent.iterdir()) == [old]


def test_a_copy_that_was_killed_in_the_middle_takes_no_space_after_the_next_one(data: Path, tmp_path: Path) -> None:
    part = tmp_path / "copies" / "store-2026-11-26T080000Z.part"
    part.mkdir(parents=True)
    assert keep(data, part.parent, "2").returncode == 0
    assert [path.suffix for path in part.parent.iterdir()] == [""]


def test_the_new_copy_is_kept_after_the_clock_went_back(data: Path, tmp_path: Path) -> None:
    later = tmp_path / "copies" / "store-2999-01-01T000000Z"
    later.mkdir(parents=True)
    assert keep(data, later.parent, "1").returncode == 0
    (kept,) = later.parent.iterdir()
    assert kept != later


@pytest.mark.parametrize("number", ["0", "00", "", "many", "-1"])
def test_a_number_of_copies_that_keeps_none_is_refused(data: Path, tmp_path: Path, number: str) -> None:
    done = keep(data, tmp_path / "copies", number)
    assert done.returncode != 0
    assert f"KEEP={number} is not a number from 1" in done.stderr
