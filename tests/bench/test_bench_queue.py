"""Tests the queue in memory from which baselines are made: its order, its bound, late jobs, canceled jobs, crashes."""

import pytest

from bench.sim.asks import SimJob
from bench.sim.baselines import Queue
from bench.sim.clients import OneTry
from bench.sim.fleet import SimWorker
from bench.sim.machine import Machine
from bench.sim.memory_queue import LEASE_MS, MemoryQueue
from bench.sim.simulation import Simulation, fleet

MACHINE = Machine(slots=2, cells=10_000)


def a_job(number=0, *, tenant="blue", at_ms=0.0, prompt=50, answer=5, deadline_ms=60_000):
    return SimJob(number, tenant, at_ms, prompt, answer, 100, deadline_ms)


def offer(queue, *jobs, now_ms=0.0):
    """Offer the jobs and return for each whether it was admitted."""
    taken = []

    def note(job, answer):
        job.sent_ms = now_ms
        job.admitted_ms = now_ms if answer.taken else None
        taken.append(answer.taken)

    for job in jobs:
        queue.offer(job, now_ms, lambda answer, job=job: note(job, answer))
    return taken


def claim(queue, worker, now_ms=0.0):
    """Claim jobs for the worker's free slots, start them, and return their numbers."""
    grants = queue.claim(worker, now_ms)
    for grant in grants:
        worker.take(grant.job, grant.token, now_ms, grant.deadline_at_ms, None)
    return [grant.job.number for grant in grants]


def test_a_plain_queue_is_first_in_first_out():
    queue = MemoryQueue("plain")
    offer(queue, *(a_job(n) for n in range(3)))
    assert claim(queue, SimWorker("w", MACHINE)) == [0, 1]


def test_tenants_take_turns_and_a_tenant_without_jobs_has_none():
    queue = Queue("B5", bound=None, round_robin=True, drops_late=True)
    offer(queue, *(a_job(n) for n in range(3)), a_job(3, tenant="red"))
    machine = Machine(slots=4, cells=10_000)
    assert claim(queue, SimWorker("w", machine)) == [0, 3, 1, 2]


def test_a_job_beyond_the_bound_is_refused_until_another_has_ended():
    queue, worker = Queue("B4", bound=2, round_robin=False, drops_late=True), SimWorker("w", MACHINE)
    jobs = [a_job(n) for n in range(4)]
    assert offer(queue, *jobs[:3]) == [True, True, False]
    claim(queue, worker)
    queue.settle(worker, worker.sequences[jobs[0]], "succeeded", 0.0, lambda _: None)
    assert offer(queue, jobs[3]) == [True]


def test_late_and_canceled_jobs_get_no_slot_and_do_not_count_as_inflight():
    queue = Queue("B4", bound=3, round_robin=False, drops_late=True)
    late, canceled, last = a_job(0, deadline_ms=10), a_job(1), a_job(2)
    offer(queue, late, canceled, last)
    queue.leave(canceled, 5.0)
    assert claim(queue, SimWorker("w", MACHINE), now_ms=20.0) == [2]
    assert (late.outcome, canceled.outcome, queue.inflight) == ("expired", "canceled", 1)


def test_a_job_that_does_not_fit_waits_for_cells():
    queue, worker = MemoryQueue("plain"), SimWorker("w", Machine(slots=2, cells=200))
    jobs = [a_job(0), a_job(1)]
    offer(queue, *jobs)
    assert claim(queue, worker) == [0]
    worker.crash()
    assert claim(queue, worker) == [1]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_jobs_of_a_lost_worker_are_queued_again_and_stay_inflight(restarts):
    queue, worker, job = Queue("B4", bound=1, round_robin=False, drops_late=True), SimWorker("w", MACHINE), a_job()
    offer(queue, job)
    queue.heartbeat(worker, 0.0)
    claim(queue, worker)
    worker.crash()
    if restarts:
        queue.heartbeat(worker, 100.0)
    else:
        assert not queue.reap(LEASE_MS)
        assert queue.reap(LEASE_MS + 1)
    assert queue.inflight == 1
    other = SimWorker("other", MACHINE)
    assert claim(queue, other, now_ms=20_000.0) == [0]
    queue.settle(other, other.sequences[job], "succeeded", 20_001.0, lambda _: None)
    assert queue.inflight == 0


class _TwoQueues(MemoryQueue):
    """A queue whose lists are models, to run two models with one object."""

    def claim(self, worker, now_ms):
        self.model = worker.model
        return super().claim(worker, now_ms)

    def list_of(self, job):
        return job.model

    def turns(self):
        yield self.model


def test_a_worker_runs_only_the_jobs_of_its_model_and_an_idle_worker_of_the_model_is_woken():
    jobs = [a_job(n, at_ms=1_000.0 * n) for n in range(6)]
    for job in jobs[::2]:
        job.model = "other"
    workers = [*fleet(1, MACHINE), *fleet(1, MACHINE, model="other")]
    run = Simulation(_TwoQueues("two"), jobs, client=OneTry(), seconds=10.0, seed=0, workers=workers).run()
    assert [job.outcome for job in run.jobs] == ["succeeded"] * 6
    assert [worker.stats.prompt_tokens for worker in workers] == [150, 150]
    assert all(job.claimed_ms == job.at_ms for job in run.jobs)
