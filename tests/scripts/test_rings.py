"""Tests which workers without a free slot a new job wakes, because one of them may have to pause another job."""

import pytest

from shared.store import keys
from shared.store.replies import ClaimRequest, Rings
from tests.support.builders import MODEL, a_job, admitted, advance_clock, claim, heartbeat, hold_clock, reconfigure
from tests.support.contending import a_worker, offer


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


def many_full_workers(store, settings, own=0):
    """Return nine full workers, oldest heartbeat first. The last `own` of them have jobs of the tenant `quiet`."""
    hold_clock(store)
    reconfigure(store, settings, preemption="on", quantum_ms=1_000)
    workers = []
    for number in range(9):
        tenant = "quiet" if number >= 9 - own else "loud"
        worker = a_worker(store, 2, name=f"w{number}")
        offer(store, tenant, 2)
        assert len(worker.ask().started) == 2
        workers.append(worker)
        advance_clock(store, 1)
    for worker in workers:
        ring_of(store, worker.name)
        worker.run(0)
    return workers


def test_a_job_wakes_all_full_workers_that_would_not_claim_by_themselves(store, settings):
    workers = many_full_workers(store, settings, own=3)
    for worker in workers:
        for row in worker.computing.values():
            row[1] = 3_000
        assert worker.ask().ask_in_ms == -1
    offer(store, "quiet")
    assert [ring_of(store, worker.name) for worker in workers] == [Rings(contested=True)] * 9
    assert [len(worker.ask().started) for worker in workers if worker.name == "w0"] == [1]


def test_of_the_full_workers_that_claim_by_themselves_a_job_wakes_three(store, settings):
    workers = many_full_workers(store, settings)
    for number in range(4):
        offer(store, f"rival{number}")
    for worker in workers:
        ring_of(store, worker.name)
        assert worker.ask().ask_in_ms > 0
    offer(store, "quiet")
    assert [ring_of(store, worker.name) for worker in workers].count(Rings(contested=True)) == 3


def test_a_repeated_claim_tells_again_when_the_worker_has_to_claim(preemptive):
    hold_clock(preemptive)
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 4)
    worker.ask()
    worker.run(300)
    offer(preemptive, "quiet")
    held = worker.report()
    first, again = (
        preemptive.contend("w1", ClaimRequest("the same", MODEL, room=0, cells_free=worker.cells_free, held=held))
        for _ in range(2)
    )
    assert (again.pause, again.ask_in_ms) == (first.pause, first.ask_in_ms)
    assert again.ask_in_ms > 0


def test_a_worker_that_may_pause_no_further_job_is_not_woken_until_it_claims_again(preemptive):
    hold_clock(preemptive)
    crowded, other = (a_worker(preemptive, 8, name=name) for name in ("w1", "w2"))
    offer(preemptive, "loud", 16)
    for worker in (crowded, other):
        worker.ask()
    crowded.run(300)
    for number in range(16):
        offer(preemptive, f"rival{number}")
    assert len(crowded.ask().pause) == 4
    for worker in (crowded, other):
        ring_of(preemptive, worker.name)
    offer(preemptive, "quiet")
    assert [ring_of(preemptive, name) for name in ("w1", "w2")] == [Rings(), Rings(contested=True)]
    ask_in_ms = crowded.ask().ask_in_ms
    assert 0 < ask_in_ms <= 1_000
    advance_clock(preemptive, ask_in_ms)
    offer(preemptive, "quick")
    assert ring_of(preemptive, "w1") == Rings(contested=True)


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
