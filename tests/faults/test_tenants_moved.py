"""A cell is added, tenants are moved to it and another is drained while clients send jobs: none is lost or doubled."""

import time
from collections.abc import Iterator

import pytest

from shared.accounts.budgets import Budgets
from shared.audit.invariants import find_breaches
from shared.cells.ids import cell_of_id
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import stat
from tests.support.processes import Stage, in_time, wait_for
from tests.support.program import Program
from tests.support.served import SIM, Served
from tests.support.steady_load import Load, cells_since, has_ended
from tests.support.store_servers import StoreServer

#: The longest time without an answer for a client whose tenant is moved, in seconds.
GAP_S = 1.0


@pytest.fixture
def other(tmp_path) -> Iterator[StoreServer]:
    """A store that the directory does not list yet."""
    with StoreServer(tmp_path / "c2") as server:
        yield server


@pytest.fixture
def served(tmp_path, other: StoreServer) -> Iterator[Served]:
    """A door over one cell, with a worker, and a worker for the other store."""
    with Stage(tmp_path, **SIM) as stage:
        stage.worker()
        stage.worker(wait=False, REDIS_URL=other.url)
        wait_for(lambda: Store(other.client).snapshot().live_models, "a worker of the other store", timeout_s=60)
        with Served(stage, PENSTOCK_WEB_WORKERS="1") as served:
            yield served


def used_in_month(store: Store) -> int:
    return Budgets(store.client).of_tenant("red")[0].counted_tokens


def test_jobs_go_to_a_tenants_new_cell_and_those_in_the_old_one_end_there(served: Served, other: StoreServer) -> None:
    penstock = Program(served.stage.environ())

    def cells(*arguments: str) -> None:
        done = penstock("cells", *arguments)
        assert done.returncode == 0, done.stderr

    assert penstock("tenants", "set", "red", "--tokens-per-month", "1000000000").returncode == 0
    red, blue = (Load(served, tenant, pause_s=0.03) for tenant in ("red", "blue"))
    with red.running(), blue.running():
        wait_for(lambda: min(len(red.admitted), len(blue.admitted)) >= 5, "jobs of both tenants")
        began_s = time.monotonic()
        cells("add", "c2", other.url)
        cells("move", "blue", "default")
        cells("move", "red", "c2", "--wait")
        moved_s = time.monotonic()
        wait_for(lambda: cells_since(red, moved_s)() == {"c2"}, "red's jobs in its new cell")
        wait_for(lambda: cells_since(blue, moved_s)() == {"default"}, "blue's jobs in its cell")
        cells("move", "blue", "--unpin")
        cells("drain", "default")
        wait_for(lambda: blue.admitted[-1][2].startswith("c2-"), "blue's jobs in the only cell that gets some")
        gap_s = max(load.longest_gap_s(began_s) for load in (red, blue))
        print(f"the longest gap of a client was {gap_s:.2f} s")
        cells("drain", "default", "--off")

        def move_twice() -> list[tuple[float, float]]:
            """Move red to the other cell and back. Return the longest time without an answer, and its limit."""
            since_s = time.monotonic()
            for cell in ("default", "c2"):
                cells("move", "red", cell)
                wait_for(lambda to=cell: cell_of_id(red.admitted[-1][2]) == to, f"red's jobs in {cell}")
            return [(load.longest_gap_s(since_s), GAP_S) for load in (red, blue)]

        in_time(move_twice)
    assert red.refused == blue.refused == []
    acknowledged = {load: [job_id for *_, job_id in load.admitted] for load in (red, blue)}
    for load, tenant in ((red, "red"), (blue, "blue")):
        for job_id in acknowledged[load]:
            wait_for(lambda one=job_id, as_=tenant: has_ended(served, one, as_), f"job {job_id} to end", timeout_s=30)
    ids = [job_id for some in acknowledged.values() for job_id in some]
    assert len(set(ids)) == len(ids)
    stores = [Store(client) for client in (served.stage.client, other.client)]
    assert sum(stat(store, "admitted") for store in stores) == len(ids)
    assert sum(stat(store, "ended|succeeded") for store in stores) == len(ids)
    for store in stores:
        assert find_breaches(store.client) == []
    own = [int(store.client.hget(keys.tenant("red"), "budget").split()[2]) for store in stores]
    assert min(own) > 0
    wait_for(lambda: {used_in_month(store) for store in stores} == {sum(own)}, "both cells to know what red has used")
