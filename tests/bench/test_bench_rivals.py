"""Tests the rivals' queues: whom they admit, whose turn it is, and which queued jobs they drop."""

import pytest

from bench.sim.asks import SimJob
from bench.sim.fleet import SimWorker
from bench.sim.machine import Machine
from bench.sim.rivals.breakwater import Breakwater
from bench.sim.rivals.catalogue import RIVALS
from bench.sim.rivals.dagor import LEVELS, Dagor
from bench.sim.rivals.flow_control import FlowControl
from bench.sim.rivals.round_robin import RoundRobin
from bench.sim.rivals.vtc import VirtualTokenCounter

MANY = Machine(slots=100, cells=1_000_000)


def a_job(number=0, tenant="blue", *, prompt=50, answer=5, deadline_ms=60_000):
    return SimJob(number, tenant, 0.0, prompt, answer, 100, deadline_ms)


def offer(queue, *jobs, now_ms=0.0):
    """Offer the jobs and return for each whether it was admitted."""
    taken = []

    def note(job, answer):
        job.admitted_ms = now_ms if answer.taken else None
        taken.append(answer.taken)

    for job in jobs:
        job.sent_ms = now_ms
        queue.offer(job, now_ms, lambda answer, job=job: note(job, answer))
    return taken


def claim(queue, worker, now_ms=0.0):
    """Claim jobs for the worker's free slots, start them, and return their numbers."""
    grants = queue.claim(worker, now_ms)
    for grant in grants:
        grant.job.claimed_ms = now_ms
        worker.take(grant.job, grant.token, now_ms, grant.deadline_at_ms, None)
    return [grant.job.number for grant in grants]


def run_to_end(queue, worker, now_ms=0.0):
    """Run steps until the worker has no sequence left, and settle each; return the time of the last end."""
    while took_ms := worker.begin_step():
        now_ms += took_ms
        for seq in worker.end_step(now_ms):
            queue.settle(worker, seq, "succeeded", now_ms, lambda _, job=seq.job: setattr(job, "outcome", "succeeded"))
    return now_ms


def test_round_robin_refuses_a_tenant_whose_list_is_full_and_no_other():
    queue = RoundRobin("RR", 2)
    assert offer(queue, *(a_job(n) for n in range(3)), a_job(3, "red")) == [True, True, False, True]


def test_round_robin_serves_the_earliest_deadline_of_each_tenant_in_turn():
    queue = RoundRobin("RR", 6)
    offer(queue, a_job(0, deadline_ms=9_000), a_job(1, deadline_ms=3_000), a_job(2, "red"), a_job(3, "red"))
    assert claim(queue, SimWorker("w", MANY)) == [1, 2, 0, 3]


def test_a_job_that_could_not_be_ready_in_time_even_with_a_short_answer_is_dropped():
    queue, worker = RoundRobin("RR", 100), SimWorker("w", MANY)
    offer(queue, *(a_job(n, answer=50) for n in range(10)))
    claim(queue, worker)
    now_ms = run_to_end(queue, worker)
    needs_ms = queue.estimates.short_ms(a_job())
    assert needs_ms == pytest.approx(now_ms, rel=0.1)
    hopeless, feasible = a_job(20, deadline_ms=0.9 * needs_ms), a_job(21, deadline_ms=1.1 * needs_ms)
    offer(queue, hopeless, feasible, now_ms=now_ms)
    assert claim(queue, worker, now_ms) == [21]
    assert hopeless.outcome == "expired"


def test_vtc_serves_the_tenant_that_was_served_the_fewest_tokens():
    queue, worker = VirtualTokenCounter("VTC", 100), SimWorker("w", Machine(slots=4, cells=1_000_000))
    offer(queue, a_job(0, "long", prompt=300), *(a_job(n, "short", prompt=100) for n in range(1, 5)), a_job(5, "long"))
    assert claim(queue, worker) == [0, 1, 2, 3]


def test_vtc_charges_generated_tokens_while_they_are_generated():
    queue, worker = VirtualTokenCounter("VTC", 100), SimWorker("w", Machine(slots=3, cells=1_000_000))
    offer(queue, a_job(0, "writer", prompt=10, answer=90), a_job(1, "reader", prompt=100, answer=1))
    claim(queue, worker)
    offer(queue, a_job(2, "writer"), a_job(3, "reader"))
    for _ in range(40):
        worker.begin_step()
        worker.end_step(0.0)
    assert claim(queue, worker) == [3, 2]


def test_vtc_gives_no_credit_to_a_tenant_that_was_idle():
    queue, worker = VirtualTokenCounter("VTC", 100), SimWorker("w", MANY)
    offer(queue, *(a_job(n, "busy", prompt=1_000) for n in range(50)))
    claim(queue, worker)
    offer(queue, *(a_job(n, "busy", prompt=1_000) for n in range(50, 53)))
    offer(queue, *(a_job(n, "new", prompt=1_000) for n in range(60, 63)))
    assert claim(queue, worker) == [50, 60, 51, 61, 52, 62]


def test_breakwater_admits_more_from_a_client_while_jobs_do_not_wait_and_fewer_while_they_do():
    queue, worker = Breakwater("Breakwater", 500.0, 10), SimWorker("w", MANY)

    def admitted_per_round(begin_ms, *, served):
        admitted = 0
        for i in range(30):
            now_ms = begin_ms + 100.0 * i
            admitted += sum(offer(queue, *(a_job(int(now_ms) + n) for n in range(5)), now_ms=now_ms))
            if served:
                claim(queue, worker, now_ms)
                run_to_end(queue, worker, now_ms)
        return admitted / 30

    assert admitted_per_round(0.0, served=True) > 4
    assert admitted_per_round(3_000.0, served=False) < 2


def test_breakwater_drops_a_job_that_has_waited_for_twice_the_target():
    queue = Breakwater("Breakwater", 500.0, 10)
    old = a_job(0)
    offer(queue, old)
    assert claim(queue, SimWorker("w", MANY), now_ms=1_001.0) == []
    assert (old.outcome, queue.inflight) == ("expired", 0)


@pytest.mark.parametrize("by_load", [False, True])
def test_dagor_refuses_more_tenants_while_jobs_wait_and_admits_them_again_afterwards(by_load):
    queue, worker = Dagor("DAGOR", 100.0, by_load=by_load), SimWorker("w", MANY)

    def share_admitted(begin_ms, wait_ms):
        taken = []
        for second in range(80):
            now_ms = begin_ms + 1_000.0 * second
            taken = offer(queue, *(a_job(n, f"t{n}") for n in range(50)), now_ms=now_ms)
            claim(queue, worker, now_ms + wait_ms)
            run_to_end(queue, worker, now_ms + wait_ms)
        return sum(taken) / len(taken)

    assert share_admitted(0.0, 0.0) == 1.0
    assert share_admitted(100_000.0, 900.0) < 0.1
    assert share_admitted(200_000.0, 0.0) > 0.5


def test_dagor_by_load_refuses_the_tenant_with_the_most_work_first():
    queue = Dagor("DAGOR-L", 100.0, by_load=True)
    offer(queue, *(a_job(n, "heavy") for n in range(50)), a_job(50, "light"))
    offer(queue, a_job(51), now_ms=1_001.0)
    queue._cursor = LEVELS // 2 - 1
    assert offer(queue, a_job(52, "heavy"), a_job(53, "light"), now_ms=1_002.0) == [False, True]


def test_flow_control_admits_without_a_bound_and_drops_what_has_waited_too_long():
    queue = FlowControl("llm-d", 1_000.0)
    old, behind = a_job(0, deadline_ms=90_000), a_job(1, deadline_ms=5_000)
    assert offer(queue, old, *(a_job(n, "red") for n in range(2, 400))) == [True] * 399
    offer(queue, behind, now_ms=900.0)
    offer(queue, a_job(400, "green"), now_ms=1_500.0)
    assert (old.outcome, behind.outcome) == ("expired", "")
    assert claim(queue, SimWorker("w", MANY), now_ms=1_500.0) == [1, 400]
    assert queue.inflight == 2


def test_a_group_is_one_tenant_for_a_rival():
    queue = RoundRobin("RR", 2)
    jobs = [a_job(n, f"key{n}") for n in range(3)]
    for job in jobs:
        job.group = "team"
    assert offer(queue, *jobs) == [True, True, False]


def test_every_rival_has_tried_the_bound_that_it_uses():
    assert {name for name, rival in RIVALS.items() if rival.best not in rival.bounds} == set()
