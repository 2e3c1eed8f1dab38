"""The cells of a door's process: which are away, and what ends with a cell that has left the directory."""

import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from shared.cells.directory import CellRecord, Directory
from shared.errors import StoreUnavailable
from shared.settings.settings import Settings
from web.runtime.cells import DoorCells

LONG_S = 30.0


@dataclass(eq=False)
class FakeCell:
    """A context whose store answers a PING as the test says."""

    cell: str
    ping: Any = lambda: True
    settings: Settings = field(default_factory=Settings)
    is_closed: bool = False
    accounts: Any = None

    @property
    def store(self) -> Any:
        return SimpleNamespace(client=SimpleNamespace(ping=self.ping))

    def take_name(self, cell: str) -> None:
        self.cell = cell

    def close(self) -> None:
        self.is_closed = True


def directory_of(*names: str, version: int = 1) -> Directory:
    return Directory(version, {name: CellRecord(name, f"redis://{name}.example") for name in names})


def cells_of(*names: str) -> DoorCells[Any]:
    first, *_ = names
    cells: DoorCells[Any] = DoorCells(FakeCell(first))
    cells.adopt(directory_of(*names), lambda record: FakeCell(record.name), first)
    return cells


def test_stores_that_hang_are_all_asked_at_the_same_time() -> None:
    names = [f"c{number}" for number in range(40)]
    cells = cells_of(*names)
    together = threading.Barrier(len(names))

    def hang() -> None:
        together.wait(LONG_S)
        raise StoreUnavailable("it hangs")

    for one in cells.all():
        one.ping = hang
        cells.suspect(one)
    cells.check_suspects()
    assert not together.broken
    assert all(map(cells.is_away, cells.all()))


def test_a_cell_that_leaves_is_closed_and_forgotten() -> None:
    cells = cells_of("a", "b", "c")
    gone = cells.named("b")
    cells.note_away(gone)
    cells._answers = gone
    cells.adopt(directory_of("a", "c", version=2), lambda record: FakeCell(record.name), "a")
    assert gone.is_closed
    assert [one.cell for one in cells.all()] == ["a", "c"]
    cells.check_suspects()
    assert not cells.any_away
    assert cells.ask(lambda _: "answer") == "answer"
    assert cells._answers is not gone


def test_a_cell_whose_settings_conflict_is_asked_for_no_account() -> None:
    cells = cells_of("a", "b")
    unfit = cells.named("b")
    cells._answers = unfit
    cells.leave_out(unfit)
    assert unfit.is_closed
    assert cells._answers is cells.first


@pytest.mark.parametrize("state", ["serving", "draining"])
def test_a_cell_that_changes_in_place_is_served_by_the_same_context(state: Any) -> None:
    cells = cells_of("a", "b")
    before = cells.named("b")
    directory = directory_of("a", "b", version=2)
    changed = {**directory.cells, "b": replace(directory.cells["b"], state=state, weight=7.0)}
    cells.adopt(replace(directory, cells=changed), lambda record: FakeCell(record.name), "a")
    assert cells.named("b") is before


def test_requests_that_fail_do_not_hurry_the_checks_of_a_cell_that_is_known_to_be_away() -> None:
    cells = cells_of("a", "b")
    cells.note_away(cells.named("b"))
    assert cells.has_suspects.is_set()
    cells.named("b").ping = lambda: pytest.fail("it is asked at its own time")
    cells.has_suspects.clear()
    cells.suspect(cells.named("b"))
    cells.note_away(cells.named("b"))
    assert not cells.has_suspects.is_set()
