"""A worker with adapters under overload: free slots go from pool to pool, none starves, and a drain loses no job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Process, Stage, wait_for
from workers.exit_codes import ExitCode

pytestmark = pytest.mark.ways("direct", reason="these tests are about which pool of a worker gets a slot")

POOLS = ("sim", "sim:a", "sim:b")
#: Each pool's jobs: with two slots and 20 ms a job, all take .4 s.
JOBS = 14


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    settings = {
        "PENSTOCK_ENGINE": "sim",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_MAX_BATCH_SIZE": "2",
        "PENSTOCK_SIM_DECODE_TPS": "500",
        "PENSTOCK_DRAIN_GRACE_MS": "500",
        "PENSTOCK_MAX_QUEUE_SIZE": "64",
        "PENSTOCK_ADAPTERS": "a=a.gguf,b=b.gguf",
    }
    folder: Path = tmp_path_factory.mktemp("stage")
    with Stage(folder, **settings) as stage:
        yield stage


@pytest.fixture
def worker(stage: Stage) -> Iterator[Process]:
    process = stage.worker()
    live = stage.store.snapshot
    wait_for(lambda: set(POOLS) <= set(live().live_models), "all pools to be live", timeout_s=60)
    yield process
    if process.alive:
        stage.assert_sound()
        process.terminate()
        process.exit_code(timeout_s=60)


def queue(stage: Stage, pools: tuple[str, ...] = POOLS, jobs: int = JOBS, tokens: int = 10) -> dict[str, list[str]]:
    """Queue jobs in each pool, one pool after the other."""
    return {pool: [stage.admit(model=pool, max_tokens=tokens) for _ in range(jobs)] for pool in pools}


def test_the_slots_go_round_among_the_pools_and_all_jobs_end(stage: Stage, worker: Process) -> None:
    queued = queue(stage)
    ids = [job_id for pool in queued.values() for job_id in pool]
    ended = {view.id: view for view in stage.ended(*ids, timeout_s=120)}
    assert {view.state.value for view in ended.values()} == {"succeeded"}
    pool_of = {job_id: pool for pool, jobs in queued.items() for job_id in jobs}
    order = [pool_of[job_id] for job_id in sorted(ids, key=lambda job_id: ended[job_id].ended_ms or 0)]
    # The first pool had jobs before the others did, and its last one still ends after most of theirs.
    last = max(at for at, pool in enumerate(order) if pool == "sim")
    assert all(order[:last].count(pool) >= JOBS // 2 for pool in POOLS[1:]), order


def test_a_pool_alone_has_all_slots_and_the_reports_name_each_slot_once(stage: Stage, worker: Process) -> None:
    ids = queue(stage, ("sim:b",), jobs=2, tokens=2_000)["sim:b"]
    stage.wait_until_running(*ids)
    expected = {"sim": 1, "sim:a": 1, "sim:b": 2}
    wait_for(
        lambda: {view.model: view.slots for view in stage.store.snapshot().workers if view.live} == expected,
        "the reports to follow the jobs",
        timeout_s=60,
    )
    for job_id in ids:
        stage.store.cancel(job_id)
    stage.ended(*ids)


def test_a_drain_gives_the_jobs_of_all_pools_back(stage: Stage, worker: Process) -> None:
    queued = queue(stage, jobs=3, tokens=1_500)
    ids = [job_id for pool in queued.values() for job_id in pool]
    wait_for(lambda: stage.store.snapshot().running == 2, "both slots to be taken")
    worker.terminate()
    assert worker.exit_code(timeout_s=60) == ExitCode.DRAINED
    assert {view.state.value for view in stage.jobs(ids)} == {"queued"}
    assert stage.store.snapshot().live_models == []
    for job_id in ids:
        stage.store.cancel(job_id)
