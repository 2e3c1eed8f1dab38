"""Tests of the directory of cells in several cells of one store: copies, changes at the same time, and lost cells."""

from collections.abc import Iterator, Mapping

import pytest
import redis

from shared.accounts.admin_actions import Actor, list_actions
from shared.cells.checks import directory_problems
from shared.cells.directory import CellRecord, Directory
from shared.cells.opening import Cells, cells_in_force, remember, remembered
from shared.cells.stored import NO_STAMP, StoredDirectory, ask_all, bring_up_to_date, change, newest
from shared.errors import ConfigError, StoreUnavailable
from shared.settings.settings import load
from shared.store import keys
from shared.store.connection import open_client
from tests.support.ports import free_port

pytestmark = pytest.mark.no_prefix

PREFIXES = {"default": "", "c2": "{c2}:", "c3": "{c3}:"}
ACTOR = Actor("somebody", "a test")


@pytest.fixture
def clients(redis_client: redis.Redis, store_url: str) -> Iterator[dict[str, redis.Redis]]:
    """Clients of three cells of the session's store, by name."""
    opened = {name: open_client(store_url, name="penstock-test", prefix=prefix) for name, prefix in PREFIXES.items()}
    yield opened
    for client in opened.values():
        client.close()


@pytest.fixture
def first(store_url: str) -> Directory:
    return Directory(1, {name: CellRecord(name, store_url, prefix) for name, prefix in PREFIXES.items()})


def away() -> redis.Redis:
    return open_client(f"redis://127.0.0.1:{free_port()}", name="penstock-test", prefix="")


def write(clients: Mapping[str, redis.Redis], directory: Directory) -> None:
    assert bring_up_to_date(directory, clients) == ()


def test_a_store_without_a_directory_has_version_0(clients):
    stored = StoredDirectory(clients["c2"])
    assert (stored.version(), stored.stamp(), stored.read()) == (0, NO_STAMP, None)
    assert newest(clients) is None


def test_each_cell_gets_a_copy_and_an_older_one_replaces_nothing(clients, first):
    write(clients, first)
    second = first.changed(at_ms=5, spread=2)
    assert StoredDirectory(clients["c3"]).write_if_newer(second)
    assert not StoredDirectory(clients["c3"]).write_if_newer(first)
    assert [StoredDirectory(client).version() for client in clients.values()] == [1, 1, 2]
    assert newest(clients) == second
    write(clients, second)
    assert {StoredDirectory(client).read() == second for client in clients.values()} == {True}
    assert {client.ttl(keys.cells()) for client in clients.values()} == {-1}


def test_a_change_reaches_every_cell_and_is_recorded_once(clients, first):
    write(clients, first)
    changed = change(
        clients, lambda found, at_ms: found.changed(at_ms=at_ms, spread=2), actor=ACTOR, what="cells.spread", on="2"
    )
    assert changed.away == ()
    assert (changed.directory.version, changed.directory.spread) == (2, 2)
    assert changed.directory.changed_ms > 1_600_000_000_000
    assert {StoredDirectory(client).read() == changed.directory for client in clients.values()} == {True}
    recorded = [action for client in clients.values() for action in list_actions(client, limit=9)]
    assert [(one.who, one.what, one.on) for one in recorded] == [("somebody", "cells.spread", "2")]


def test_two_changes_at_the_same_time_are_both_made(clients, first):
    write(clients, first)
    tries = []

    def edit(found: Directory, at_ms: int) -> Directory:
        tries.append(found.version)
        if len(tries) == 1:
            change(
                clients,
                lambda other, other_ms: other.changed(at_ms=other_ms, cells={**other.cells, "c3": drained(other)}),
                actor=ACTOR,
                what="cells.drain",
                on="c3",
            )
        return found.changed(at_ms=at_ms, spread=2)

    made = change(clients, edit, actor=ACTOR, what="cells.spread", on="2").directory
    assert tries == [1, 2]
    assert (made.version, made.spread, made.cells["c3"].state) == (3, 2, "draining")


def drained(directory: Directory) -> CellRecord:
    cell = directory.cells["c3"]
    return CellRecord(cell.name, cell.url, cell.prefix, state="draining")


def test_a_cell_that_is_away_is_named_and_gets_the_change_later(clients, first):
    write(clients, first)
    changed = change(
        clients | {"c2": away()},
        lambda found, at_ms: found.changed(at_ms=at_ms, spread=2),
        actor=ACTOR,
        what="cells.spread",
        on="2",
    )
    assert changed.away == ("c2",)
    assert StoredDirectory(clients["c2"]).version() == 1
    assert bring_up_to_date(changed.directory, clients) == ()
    assert StoredDirectory(clients["c2"]).read() == changed.directory


def test_without_any_cell_in_reach_nothing_is_taken_for_no_directory(clients):
    asked = ask_all({"c1": away()}, lambda client: StoredDirectory(client).version())
    assert (asked.answers, list(asked.away)) == ({}, ["c1"])
    for call in (
        lambda: newest({"c1": away(), "c2": away()}),
        lambda: change({"default": away()}, lambda found, at_ms: found, actor=ACTOR, what="x", on="y"),
    ):
        with pytest.raises(StoreUnavailable, match="no cell answers"):
            call()


@pytest.mark.parametrize("spoil", ["set", "hset"])
def test_a_spoiled_copy_is_no_directory_and_is_mended_from_another(clients, first, spoil):
    second = first.changed(at_ms=1, spread=2)
    write(clients, first)
    if spoil == "set":
        clients["c2"].set(keys.cells(), "x")
    else:
        clients["c2"].hset(keys.cells(), "cell|c2", "x")
    with pytest.raises(ConfigError, match=r"penstock:cells is no hash|cell\|c2='x'"):
        newest({"c2": clients["c2"]})
    assert newest(clients) == first
    write(clients, second)
    assert StoredDirectory(clients["c2"]).read() == second


def test_commands_find_all_cells_from_any_of_them(clients, first, store_url, tmp_path):
    alone = load(environ={"REDIS_URL": store_url, "PENSTOCK_STATE_DIR": str(tmp_path)}, dotenv=None)
    assert (list(cells_in_force(alone)), cells_in_force(alone).directory) == (["default"], None)
    assert remembered(alone) is None
    write(clients, first)
    second = first.changed(at_ms=1, spread=3)
    StoredDirectory(clients["c3"]).write_if_newer(second)
    for prefix in PREFIXES.values():
        named = {"REDIS_URL": store_url, "PENSTOCK_KEY_PREFIX": prefix, "PENSTOCK_STATE_DIR": str(tmp_path)}
        found = cells_in_force(load(environ=named, dotenv=None))
        assert (sorted(found), found.directory) == (["c2", "c3", "default"], second)
        found["c2"].set(keys.secret(), prefix)
        assert clients["c2"].get(keys.secret()) == prefix.encode()
        found.close()
        assert remembered(load(environ=named, dotenv=None)) == second


def test_with_its_own_store_away_a_command_finds_the_cells_in_its_state_folder(clients, first, store_url, tmp_path):
    lost = f"redis://127.0.0.1:{free_port()}"
    cells = {**first.cells, "default": CellRecord("default", lost)}
    environ = {"REDIS_URL": lost, "PENSTOCK_STATE_DIR": str(tmp_path)}
    with pytest.raises(StoreUnavailable):
        cells_in_force(load(environ=environ, dotenv=None))
    remember(load(environ=environ, dotenv=None), first.changed(at_ms=1, cells=cells))
    newer = first.changed(at_ms=2, cells=cells)
    StoredDirectory(clients["c2"]).write_if_newer(newer)
    found = cells_in_force(load(environ=environ, dotenv=None))
    assert (found.directory, list(found.away)) == (newer, ["default"])
    found.close()
    other = environ | {"REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    with pytest.raises(StoreUnavailable):
        cells_in_force(load(environ=other, dotenv=None))


def test_doctor_names_a_spoiled_copy_that_seems_newer_and_how_it_is_mended(clients, first):
    write(clients, first)
    assert directory_problems(Cells(first, clients)) == []
    clients["c2"].hset(keys.cells(), mapping={"version": 99, "cell|c2": "x"})
    (problem,) = directory_problems(Cells(first, clients))
    assert problem.startswith("cell c2 has a spoiled copy of the directory; after `penstock redis --cell c2 DEL")
    clients["c2"].delete(keys.cells())
    write(clients, first)
    assert directory_problems(Cells(first, clients)) == []
