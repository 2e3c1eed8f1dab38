"""Tests of which workers without a free slot a new job wakes, because one of them may have to pause another job."""

import pytest

from shared.store import keys
from shared.store.replies import Rings
from tests.support.builders import MODEL, a_job, admitted, advance_clock, claim, heartbeat, reconfigure


def ring_of(store, worker: str) -> Rings:
    """Return what has rung at the worker's own doorbell."""
    return store.wait_for_work(worker, "none", timeout_s=0.01)


@pytest.fixture
def full(store, settings):
    """A store with two workers, whose slots have jobs of one tenant."""
    reconfigure(store, settings, preemption="on")
    for worker in ("w1", "w2"):
        heartbeat(store, worker, slots=2, facts={"can_pause": 1})
    for _ in range(4):
        admitted(store, a_job("loud"))
    for worker in ("w1", "w2"):
        assert len(claim(store, worker, room=2)) == 2
        assert ring_of(store, worker) == Rings()
    return store


def test_a_job_of_another_tenant_wakes_every_full_worker(full):
    admitted(full, a_job("quiet"))
    assert [ring_of(full, worker) for worker in ("w1", "w2")] == [Rings(contested=True)] * 2
    assert [ring_of(full, worker) for worker in ("w1", "w2")] == [Rings()] * 2


def test_a_job_of_the_tenant_that_has_all_slots_wakes_no_full_worker(full):
    admitted(full, a_job("loud"))
    assert [ring_of(full, worker) for worker in ("w1", "w2")] == [Rings()] * 2


def test_a_job_of_the_tenant_whose_batch_jobs_have_all_slots_wakes_the_full_workers(store, settings):
    reconfigure(store, settings, preemption="on")
    heartbeat(store, "w1", slots=2, facts={"can_pause": 1})
    for _ in range(2):
        admitted(store, a_job("loud", priority=-1))
    assert len(claim(store, "w1", room=2)) == 2
    assert ring_of(store, "w1") == Rings()
    admitted(store, a_job("loud"))
    assert ring_of(store, "w1") == Rings(contested=True)


def test_a_job_wakes_no_full_worker_while_a_slot_of_the_pool_is_free(full):
    heartbeat(full, "w3", slots=1)
    admitted(full, a_job("quiet"))
    assert [ring_of(full, worker) for worker in ("w1", "w2")] == [Rings()] * 2
    assert full.wait_for_work("w3", MODEL, timeout_s=1).pool


def test_a_job_wakes_no_full_worker_without_preemption(full, settings):
    reconfigure(full, settings, preemption="off")
    admitted(full, a_job("quiet"))
    assert [ring_of(full, worker) for worker in ("w1", "w2")] == [Rings()] * 2


def test_a_worker_that_cannot_pause_jobs_is_not_woken(full):
    heartbeat(full, "w1", slots=2, facts={"can_pause": 0})
    admitted(full, a_job("quiet"))
    assert [ring_of(full, worker) for worker in ("w1", "w2")] == [Rings(), Rings(contested=True)]


def test_a_worker_that_is_no_longer_live_is_not_woken(full):
    for _ in range(2):
        advance_clock(full, 3_000)
        heartbeat(full, "w2", slots=2)
    admitted(full, a_job("quiet"))
    assert [ring_of(full, worker) for worker in ("w1", "w2")] == [Rings(), Rings(contested=True)]


def test_a_job_that_is_given_back_wakes_the_full_workers(full):
    heartbeat(full, "w3", slots=1)
    admitted(full, a_job("quiet"))
    (job,) = claim(full, "w3", room=1)
    full.farewell("w3", MODEL)
    full.release("w3", [job.held])
    assert ring_of(full, "w1") == Rings(contested=True)


def test_a_doorbell_that_nobody_reads_is_rung_64_times_at_most(full):
    full.client.lpush(keys.bell("w1"), *["!"] * 64)
    full.client.expire(keys.bell("w1"), 60)
    admitted(full, a_job("quiet"))
    assert full.client.llen(keys.bell("w1")) == 64
    assert ring_of(full, "w2") == Rings(contested=True)
