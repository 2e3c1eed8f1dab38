"""Tests of real workers while the clock of the store's machine is set back, or forward and back again."""

import pytest

from shared.jobs.states import JobState
from shared.store import keys
from tests.support.processes import Stage, wait_for

HOUR_MS = 3_600_000


def set_clock(stage: Stage, ms: int) -> None:
    """Set the clock forward or back, and wait for the only worker's next heartbeat."""
    before = stage.client.zrange(keys.workers(), 0, -1, withscores=True)
    stage.client.incrby(keys.clock(), ms)
    wait_for(lambda: stage.client.zrange(keys.workers(), 0, -1, withscores=True) not in ([], before), "a heartbeat")


@pytest.mark.parametrize("jumps_ms", [[-HOUR_MS], [HOUR_MS, -HOUR_MS]])
def test_a_worker_keeps_its_job_when_the_clock_jumps_and_if_it_dies_the_job_succeeds_on_another(stage, jumps_ms):
    first = stage.worker()
    job_id = stage.admit(max_tokens=2_000, deadline_ms=10 * HOUR_MS)
    stage.wait_for_text(job_id)
    for ms in jumps_ms:
        set_clock(stage, ms)
    assert (stage.job(job_id).state, stage.job(job_id).attempts) == (JobState.RUNNING, 1)
    first.kill()
    stage.worker(PENSTOCK_SIM_DECODE_TPS="10000")
    (view,) = stage.ended(job_id)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)
    assert stage.inflight() == 0
