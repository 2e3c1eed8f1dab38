"""Tests of the directory of cells in two stores, when one is killed while it is changed, and returns."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.accounts.admin_actions import Actor
from shared.cells.checks import directory_problems
from shared.cells.directory import CellRecord, Directory
from shared.cells.opening import Cells, cells_in_force
from shared.cells.stored import StoredDirectory, bring_up_to_date, change
from shared.settings.settings import load
from shared.store.store import Store
from tests.support.in_process import InProcess
from tests.support.processes import wait_for
from tests.support.store_servers import StoreServer, sentinel_of

ACTOR = Actor("somebody", "a test")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, StoreServer]]:
    """Two stores, the cells c1 and c2 of a directory."""
    with StoreServer(tmp_path / "1") as one, StoreServer(tmp_path / "2") as two:
        yield {"c1": one, "c2": two}


def test_a_change_survives_the_loss_of_either_cell_while_it_is_made(
    servers: dict[str, StoreServer], tmp_path: Path
) -> None:
    first = Directory(1, {name: CellRecord(name, server.url) for name, server in servers.items()})
    clients = {name: server.client for name, server in servers.items()}
    assert bring_up_to_date(first, clients) == ()
    environ = {"REDIS_URL": servers["c1"].url, "PENSTOCK_STATE_DIR": str(tmp_path / "state")}
    cells_in_force(load(environ=environ, dotenv=None)).close()

    version = 1
    for victim, server in servers.items():
        survivor = next(name for name in servers if name != victim)

        def edit(found: Directory | None, at_ms: int, killed: StoreServer = server) -> Directory:
            # The directory has been read, and neither cell has the change yet. Of the first, c1, the change is tried
            # again in the other.
            if killed.alive:
                killed.process.kill()
            assert found is not None
            return found.changed(at_ms=at_ms, spread=found.spread + 1)

        changed = change(clients, edit, actor=ACTOR, what="cell.spread", on="a test")
        version += 1
        assert (changed.directory.version, changed.directory.spread) == (version, version)
        assert changed.away == (victim,)
        assert StoredDirectory(clients[survivor]).read() == changed.directory

        # Commands find the directory, through the state folder if their own store is the one that was lost.
        cells = cells_in_force(load(environ=environ, dotenv=None))
        assert (cells.directory, list(cells.away)) == (changed.directory, [victim])
        assert [problem.partition(":")[0] for problem in directory_problems(cells)] == [
            f"cell {victim} does not answer"
        ]
        cells.close()

        server.start()
        problems = directory_problems(Cells(changed.directory, clients))
        assert problems == [f"cell {victim} has version {version - 1} of the directory, and {version} is the newest"]
        assert bring_up_to_date(changed.directory, clients) == ()
        assert directory_problems(Cells(changed.directory, clients)) == []


@pytest.fixture
def sentinel(servers: dict[str, StoreServer], tmp_path: Path) -> Iterator[str]:
    """A Sentinel that looks after c1 with c2 as its replica; yields the URL."""
    with sentinel_of(servers["c1"], servers["c2"], tmp_path) as url:
        yield url


def test_a_cell_behind_a_sentinel_keeps_its_copy_when_its_primary_is_lost(
    servers: dict[str, StoreServer], sentinel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreServer(tmp_path / "3") as other:
        penstock = InProcess(monkeypatch, tmp_path / "state", sentinel)
        Store(servers["c1"].client).configure(load(environ={}, dotenv=None))
        added = penstock("cells", "add", "c2", other.url)
        assert added.returncode == 0, added.stderr
        wait_for(lambda: StoredDirectory(servers["c2"].client).version() == 1, "the replica to have the directory")
        servers["c1"].process.kill()
        wait_for(lambda: servers["c2"].client.info("replication")["role"] == "master", "the replica to be promoted")
        wait_for(lambda: penstock("cells", "ls").returncode == 0, "the Sentinel to name the new primary")
        changed = penstock("cells", "spread", "2")
        assert changed.returncode == 0, changed.stderr
        assert StoredDirectory(servers["c2"].client).read() == StoredDirectory(other.client).read()
