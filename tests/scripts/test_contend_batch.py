"""Tests of batch jobs with preemption: they give their slots to all other jobs, and take slots from batch jobs only."""

import pytest

from shared.store import keys
from tests.support.builders import MODEL, pass_time
from tests.support.contending import QUANTUM_MS, a_worker, offer

pytestmark = pytest.mark.rq


@pytest.mark.parametrize("tenant", ["newcomer", "batch"])
def test_a_batch_job_gives_its_slot_to_any_other_job_of_any_tenant(preemptive, tenant):
    worker = a_worker(preemptive, slots=1)
    (batch,) = offer(preemptive, "batch", priority=-1)
    assert [job.id for job in worker.ask().started] == [batch]
    (other,) = offer(preemptive, tenant)
    worker.run(QUANTUM_MS // 4)
    answer = worker.ask()
    assert (answer.pause, [job.id for job in answer.started]) == ([batch], [other])


def test_a_batch_job_is_paused_before_the_jobs_of_a_tenant_with_more_slots_than_its_share(preemptive):
    worker = a_worker(preemptive)
    (batch,) = offer(preemptive, "batch", priority=-1)
    worker.ask()
    offer(preemptive, "loud", 3)
    worker.ask()
    offer(preemptive, "newcomer")
    worker.run(2 * QUANTUM_MS)
    assert worker.ask().pause == [batch]
    assert worker.tenants() == ["loud", "loud", "loud", "newcomer"]


def test_a_batch_job_takes_no_slot_however_long_other_jobs_run(preemptive):
    worker = a_worker(preemptive, slots=2)
    offer(preemptive, "loud", 2, max_tokens=1_000)
    worker.ask()
    offer(preemptive, "batch", priority=-1)
    for _ in range(5):
        worker.run(QUANTUM_MS)
        answer = worker.ask()
        assert (answer.pause, answer.started, answer.ask_in_ms) == ([], [], -1)


def test_a_paused_batch_job_continues_only_when_nobody_wants_slots_for_other_jobs(preemptive):
    worker = a_worker(preemptive, slots=1)
    (batch,) = offer(preemptive, "batch", priority=-1)
    worker.ask()
    for tenant in ("ann", "bob"):
        offer(preemptive, tenant)
    worker.run(QUANTUM_MS)
    for _ in range(2):
        worker.ask()
        assert worker.paused == {batch: worker.paused[batch]}
        worker.end(next(iter(worker.computing)))
    assert worker.ask().resume == [batch]


def test_tenants_with_only_batch_jobs_take_turns_with_each_other(preemptive):
    worker = a_worker(preemptive, slots=1)
    for tenant in ("ann", "bob"):
        offer(preemptive, tenant, priority=-1, max_tokens=1_000)
    ran = []
    for _ in range(12):
        worker.ask()
        ran += worker.tenants()
        worker.run(QUANTUM_MS)
    assert abs(ran.count("ann") - ran.count("bob")) <= 2


def test_a_paused_batch_job_of_a_dead_worker_goes_back_to_its_queue(preemptive, settings):
    worker = a_worker(preemptive, slots=1)
    (batch,) = offer(preemptive, "batch", priority=-1)
    worker.ask()
    offer(preemptive, "ann")
    worker.run(QUANTUM_MS)
    assert worker.ask().pause == [batch]
    assert preemptive.client.hget(keys.rows(MODEL), "pb|batch") == b"1"
    pass_time(preemptive, settings.lease_ms + 2_000)
    assert preemptive.reap().requeued == 2
    assert not preemptive.client.exists(keys.rows(MODEL))
    assert preemptive.client.zrange(keys.batch(MODEL), 0, -1) == [b"batch"]
