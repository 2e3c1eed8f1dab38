"""A cell's store is killed, or its slot moves, under load: no job is lost, and the next cell serves its tenants."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.audit.invariants import find_breaches
from shared.cells.directory import CellRecord, Directory, Placement
from shared.cells.ids import cell_of_id
from shared.cells.opening import Cells, open_all
from shared.cells.stored import StoredDirectory
from shared.store.connection import OPERATOR
from shared.store.store import Store
from tests.support.builders import stat
from tests.support.processes import Stage, in_time, wait_for
from tests.support.served import SIM, Served
from tests.support.steady_load import Load, cells_since, has_ended
from tests.support.store_cluster import StoreCluster
from tests.support.store_servers import StoreServer, sentinel_of

#: The longest time without an answer for a tenant of two cells, in seconds.
GAP_S = 2.0
#: How much of the newest jobs a replica may lack, in seconds.
LAG_S = 1.0
#: The longest time without an answer for a client of a cell whose slot moves, in seconds.
SLOT_GAP_S = 1.0


@dataclass(frozen=True)
class Stores:
    """The stores of a deployment whose cell `b` is about to be lost."""

    #: The cells other than `default`; with that one in it, the cell that the door's settings name.
    records: dict[str, CellRecord]
    kill: Callable[[], None]
    #: Bring the store back, unless a replica takes its place.
    restore: Callable[[], None]
    #: Whether the cell has every job that was acknowledged, as docs/guarantees.md says.
    keeps_all: bool
    #: The cell of a tenant that has nothing to do with `b`.
    unaffected: str = "default"
    cluster: StoreCluster | None = None


@contextmanager
def own_store(folder: Path) -> Iterator[Stores]:
    """A store that writes to its disk before each answer, and is started again."""
    with StoreServer(folder / "b", appendfsync="always") as server:
        yield Stores({"b": CellRecord("b", server.url)}, server.process.kill, server.start, keeps_all=True)


@contextmanager
def primary_of_a_sentinel(folder: Path) -> Iterator[Stores]:
    """A primary whose replica is promoted."""
    with (
        StoreServer(folder / "b") as primary,
        StoreServer(folder / "replica") as replica,
        sentinel_of(primary, replica, folder) as url,
    ):
        yield Stores({"b": CellRecord("b", url)}, primary.process.kill, lambda: None, keeps_all=False)


@contextmanager
def node_of_a_cluster(folder: Path) -> Iterator[Stores]:
    """Three nodes with six cells; that of the cells `b` and `c` has a replica, which is promoted."""
    with StoreCluster(folder / "cluster", replicas=1, node_timeout_ms=2_000) as cluster:
        prefixes = [prefix for node in cluster.nodes[:3] for prefix in cluster.prefixes_on(node, 2)]
        names = ("b", "c", "default", "d", "e", "f")
        records = {name: CellRecord(name, cluster.url, prefix) for name, prefix in zip(names, prefixes, strict=True)}
        kill = cluster.nodes[0].process.kill
        yield Stores(records, kill, lambda: None, keeps_all=False, unaffected="e", cluster=cluster)


@dataclass(frozen=True)
class Scene:
    """The stores, clients of their cells, and a door over them."""

    stores: Stores
    cells: Cells
    served: Served


@pytest.fixture(params=[own_store, primary_of_a_sentinel, node_of_a_cluster])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A door over the cells, with a worker in each that is used. Red is spilled from `b` to `default`."""
    with request.param(tmp_path) as stores, Stage(tmp_path, **SIM) as stage:
        records = {"default": CellRecord("default", stage.url)} | stores.records
        homes = {"red": ("b", "default"), "blue": (stores.unaffected,), "green": ("b",)}
        directory = Directory(1, records, {tenant: Placement(cells) for tenant, cells in homes.items()})
        cells = open_all(directory, stage.url, OPERATOR, name="penstock-test")
        for client in cells.values():
            StoredDirectory(client).write_if_newer(directory)
        for name in sorted({"b", "default", stores.unaffected}):
            stage.worker(wait=False, REDIS_URL=records[name].url, PENSTOCK_KEY_PREFIX=records[name].prefix)
        for name in ("b", "default", stores.unaffected):
            wait_for(lambda one=name: Store(cells[one]).snapshot().live_models, f"a worker of {name}", timeout_s=60)
        own = {"REDIS_URL": records["default"].url, "PENSTOCK_KEY_PREFIX": records["default"].prefix}
        with Served(stage, PENSTOCK_WEB_WORKERS="1", **own) as served:
            yield Scene(stores, cells, served)
        cells.close()


def test_the_next_cell_serves_the_tenants_of_a_cell_whose_store_is_killed(scene: Scene) -> None:
    served, stores = scene.served, scene.stores
    red, blue, green = (Load(served, tenant) for tenant in ("red", "blue", "green"))
    with red.running(), blue.running(), green.running():
        wait_for(lambda: min(map(len, (red.admitted, blue.admitted, green.admitted))) >= 5, "jobs of all tenants")
        stores.kill()
        killed_s = time.monotonic()
        wait_for(
            lambda: len(cells_since(red, killed_s)()) > 0 and time.monotonic() > killed_s + GAP_S, "red's next cell"
        )
        # On a busy machine, a client whose cell is well waits too.
        gap_s = red.longest_gap_s(killed_s) - blue.longest_gap_s(killed_s)
        assert next(cell_of_id(job_id) for sent_s, _, job_id in red.admitted if sent_s > killed_s) == "default"
        assert gap_s < GAP_S
        assert "store_unavailable" in green.refused, "a tenant of one cell has no other"
        stores.restore()
        back_s = time.monotonic()
        wait_for(lambda: "b" in cells_since(red, back_s)(), "red's home to serve again", timeout_s=60)
        wait_for(lambda: cells_since(green, back_s)() == {"b"}, "green's home to serve again", timeout_s=60)
    assert blue.refused == []
    assert {cell_of_id(job_id) for *_, job_id in blue.admitted} == {stores.unaffected}
    for load, tenant in ((red, "red"), (blue, "blue"), (green, "green")):
        ids = [job_id for *_, job_id in load.admitted]
        assert len(set(ids)) == len(ids)
        for sent_s, answered_s, job_id in load.admitted:
            may_be_lost = not stores.keeps_all and sent_s < killed_s < answered_s + LAG_S
            if not (may_be_lost and cell_of_id(job_id) == "b"):
                wait_for(
                    lambda one=job_id, as_=tenant: has_ended(served, one, as_), f"job {job_id} to end", timeout_s=30
                )
    for client in scene.cells.values():
        assert find_breaches(client) == []


@pytest.mark.parametrize("scene", [node_of_a_cluster], indirect=True)
def test_no_client_of_a_cell_is_refused_and_no_job_is_lost_or_doubled_while_its_slot_moves(scene: Scene) -> None:
    cluster, prefix, cell = scene.stores.cluster, scene.stores.records["e"].prefix, scene.cells["e"]
    assert cluster is not None
    loads = [Load(scene.served, "blue", pause_s=0.01) for _ in range(2)]

    def move_twice() -> list[tuple[float, float]]:
        """Move the slot to another node and back. Return the longest time without an answer, and its limit."""
        since_s = time.monotonic()
        for node in (cluster.nodes[1], cluster.nodes[2]):
            counts = [len(load.admitted) for load in loads]
            cluster.move(prefix, node)
            wait_for(
                lambda before=counts: all(len(one.admitted) > n for one, n in zip(loads, before, strict=True)), "jobs"
            )
        return [(load.longest_gap_s(since_s), SLOT_GAP_S) for load in loads]

    with loads[0].running(), loads[1].running():
        wait_for(lambda: min(len(load.admitted) for load in loads) >= 5, "jobs of both clients")
        in_time(move_twice)
    assert [load.refused for load in loads] == [[], []]
    ids = [job_id for load in loads for *_, job_id in load.admitted]
    assert {cell_of_id(job_id) for job_id in ids} == {"e"}
    assert len(set(ids)) == len(ids) == stat(Store(cell), "admitted")
    for job_id in ids:
        wait_for(lambda one=job_id: has_ended(scene.served, one, "blue"), f"job {job_id} to end", timeout_s=30)
    assert stat(Store(cell), "ended|succeeded") == len(ids)
    assert find_breaches(cell) == []
