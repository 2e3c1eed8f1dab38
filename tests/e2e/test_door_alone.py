"""A door without any worker mends what another program has spoiled, so that every job still ends."""

from collections.abc import Iterator

import pytest

from shared.jobs.states import JobState
from shared.store import keys
from tests.support.builders import view_of
from tests.support.door import run_next, serve
from tests.support.processes import Stage, wait_for
from tests.support.served import Address, Served

pytestmark = pytest.mark.ways("direct", reason="the door's duties do not depend on how clients reach it")

#: Longer than the requests of the test take, so that no job expires before everything is spoiled.
DEADLINE_MS = 5_000


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environ = {"PENSTOCK_ADMISSION": "bounds", "PENSTOCK_LEASE_MS": "2000"}
    with Stage(tmp_path_factory.mktemp("alone"), **environ) as stage, Served(stage, PENSTOCK_WEB_WORKERS="1") as served:
        yield served


def test_a_door_without_workers_mends_the_store_and_ends_every_job(served: Address) -> None:
    store = served.stage.store
    # A worker that reports once, claims one job and is gone.
    serve(store)
    claimed, queued, ended = (served.submit(deadline_ms=DEADLINE_MS).json()["id"] for _ in range(3))
    assert run_next(store).id == claimed
    served.http.delete(f"/v1/jobs/{ended}")
    store.client.delete(keys.deadlines(), keys.leases())
    store.client.zadd(keys.inflight(), {ended: 1})
    for job_id in (claimed, queued):
        wait_for(lambda job_id=job_id: view_of(store, job_id).state is JobState.EXPIRED, "the job to expire")  # type: ignore[misc]
    wait_for(lambda: store.client.zscore(keys.inflight(), ended) is None, "the entry of the ended job to go")
    assert view_of(store, ended).state is JobState.CANCELED
    assert served.process.log_lines("swept")
