"""A cell's store is killed under load: the next cell serves its tenants, others notice nothing, and no job is lost."""

import time
from collections.abc import Iterator

import pytest

from shared.audit.invariants import find_breaches
from shared.cells.directory import CellRecord, Directory, Placement
from shared.cells.ids import cell_of_id
from shared.cells.stored import StoredDirectory
from shared.store.store import Store
from tests.support.processes import Stage, wait_for
from tests.support.served import SIM, Served
from tests.support.steady_load import Load, cells_since, has_ended
from tests.support.store_servers import StoreServer

#: Red lives in `b`, and is spilled to `default`.
HOMES = {"red": Placement(("b", "default")), "blue": Placement(("default",)), "green": Placement(("b",))}
#: The longest time without an answer for a tenant of two cells, in seconds.
GAP_S = 2.0


@pytest.fixture
def lost(tmp_path) -> Iterator[StoreServer]:
    """The store of cell `b`."""
    with StoreServer(tmp_path / "b", appendfsync="always") as server:
        yield server


@pytest.fixture
def served(tmp_path, lost: StoreServer) -> Iterator[Served]:
    """A door over two cells, with a worker in each."""
    with Stage(tmp_path, **SIM) as stage:
        stage.worker()
        stage.worker(wait=False, REDIS_URL=lost.url)
        wait_for(lambda: Store(lost.client).snapshot().live_models, "a worker of the other cell", timeout_s=60)
        directory = Directory(1, {n: CellRecord(n, url) for n, url in (("default", stage.url), ("b", lost.url))}, HOMES)
        for client in (stage.client, lost.client):
            StoredDirectory(client).write_if_newer(directory)
        with Served(stage, PENSTOCK_WEB_WORKERS="1") as served:
            yield served


def test_the_next_cell_serves_the_tenants_of_a_cell_whose_store_is_killed(served: Served, lost: StoreServer) -> None:
    red, blue, green = (Load(served, tenant) for tenant in ("red", "blue", "green"))
    with red.running(), blue.running(), green.running():
        wait_for(lambda: min(map(len, (red.admitted, blue.admitted, green.admitted))) >= 5, "jobs of all tenants")
        lost.process.kill()
        wait_for(lambda: not lost.alive, "the store to be gone")
        killed_s = time.monotonic()
        wait_for(
            lambda: len(cells_since(red, killed_s)()) > 0 and time.monotonic() > killed_s + GAP_S, "red's next cell"
        )
        gap_s = red.longest_gap_s(killed_s)
        assert cells_since(red, killed_s)() == {"default"}
        assert gap_s < GAP_S
        assert "store_unavailable" in green.refused, "a tenant of one cell has no other"
        lost.start()
        back_s = time.monotonic()
        wait_for(lambda: "b" in cells_since(red, back_s)(), "red's home to serve again", timeout_s=20)
        wait_for(lambda: cells_since(green, back_s)() == {"b"}, "green's home to serve again", timeout_s=20)
    assert blue.refused == []
    assert {cell_of_id(job_id) for *_, job_id in blue.admitted} == {"default"}
    for load, tenant in ((red, "red"), (blue, "blue"), (green, "green")):
        ids = [job_id for *_, job_id in load.admitted]
        assert len(set(ids)) == len(ids)
        for job_id in ids:
            wait_for(lambda one=job_id, as_=tenant: has_ended(served, one, as_), f"job {job_id} to end", timeout_s=30)
    for client in (served.stage.client, lost.client):
        assert find_breaches(client) == []
