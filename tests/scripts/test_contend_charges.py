"""Tests of the charges for running jobs with preemption, and of the time that the jobs ran without pauses."""

import pytest

from shared.store import keys
from shared.store.replies import Progress
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, hold_clock
from tests.support.contending import QUANTUM_TOKENS, a_worker, after_a_pause, offer

pytestmark = pytest.mark.rq


def service_mwt(store: Store) -> int:
    return int(store.client.hget(keys.tenant("loud"), keys.service_field(MODEL)))


def test_what_a_job_generated_is_charged_at_a_claim_once_another_job_has_no_slot(preemptive):
    worker = a_worker(preemptive, slots=1)
    offer(preemptive, "loud", prompt_tokens=10)
    worker.ask()
    assert service_mwt(preemptive) == 10_000
    worker.run(1_000)
    worker.ask()
    assert service_mwt(preemptive) == 10_000
    offer(preemptive, "quiet")
    worker.ask()
    assert service_mwt(preemptive) == 10_000 + QUANTUM_TOKENS * 4_000


def test_a_job_of_a_worker_that_cannot_pause_jobs_is_charged_its_estimate_when_it_is_claimed(preemptive):
    worker = a_worker(preemptive, can_pause=False)
    (job_id,) = offer(preemptive, "loud", prompt_tokens=10, cost_mwt=110_000)
    worker.ask()
    assert service_mwt(preemptive) == 110_000
    # 10 prompt tokens and 25 generated ones cost as much, and only what exceeds that is charged while the job runs.
    for tokens, charged_mwt in ((20, 110_000), (30, 130_000)):
        progress = {job_id: Progress(tokens)}
        preemptive.renew(a_heartbeat(facts={"can_pause": 0}), [worker.claims[job_id].held], progress=progress)
        assert service_mwt(preemptive) == charged_mwt


def test_the_time_of_a_run_is_without_its_pauses_but_not_without_those_of_an_earlier_attempt(preemptive):
    hold_clock(preemptive)
    worker, paused = after_a_pause(preemptive)
    assert worker.ask().resume == [paused]
    preemptive.client.hdel(keys.books(MODEL), "run_ms")
    assert preemptive.release("w1", [worker.claims[paused].held]) == 1
    worker.forget(paused)
    assert [job.id for job in worker.ask().started] == [paused]
    worker.run(500)
    worker.end(paused)
    assert preemptive.client.hget(keys.books(MODEL), "run_ms") == b"500"
