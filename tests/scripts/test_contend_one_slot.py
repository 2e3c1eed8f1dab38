"""Tests of preemption on a worker with one slot, which tenants can only have one after the other."""

from itertools import pairwise

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from tests.support.contending import QUANTUM_TOKENS, a_worker, offer

pytestmark = pytest.mark.rq


@pytest.mark.parametrize("ran_ms", [100, 1_000, 3_000])
@pytest.mark.parametrize("times_too_fast", [1, 4])
def test_a_tenant_with_nothing_that_runs_gets_the_only_slot_when_its_job_has_had_it_for_a_quantum(
    preemptive, ran_ms, times_too_fast
):
    """The wait does not depend on the rate that the worker reports, which may be too high while its machine is busy."""
    usual_wtps = QUANTUM_TOKENS * 4
    worker = a_worker(preemptive, slots=1, rates={"mu_wtps": times_too_fast * usual_wtps})
    offer(preemptive, "loud", max_tokens=1_000)
    worker.ask()
    worker.run(ran_ms)
    worker.beat()
    (quick,) = offer(preemptive, "quiet")
    waited_ms = 0
    while not (answer := worker.ask()).started:
        worker.run(answer.ask_in_ms)
        waited_ms += answer.ask_in_ms
    assert ([job.id for job in answer.started], waited_ms <= max(250, 1_000 - ran_ms)) == ([quick], True)


def test_a_worker_asks_again_if_a_tenant_waits_when_a_free_slot_goes_to_another_one(preemptive):
    worker = a_worker(preemptive, slots=1)
    offer(preemptive, "a", max_tokens=1_000)
    (other,) = offer(preemptive, "b", max_tokens=1_000)
    assert worker.ask().ask_in_ms == 250
    assert worker.tenants() == ["a"]
    worker.run(1_000)
    answer = worker.ask()
    assert ([job.id for job in answer.started], len(answer.pause), answer.ask_in_ms) == ([other], 1, 250)


def test_a_worker_asks_again_if_a_tenant_waits_when_a_paused_job_continues(preemptive):
    worker = a_worker(preemptive, slots=1)
    offer(preemptive, "loud", max_tokens=1_000)
    worker.ask()
    worker.run(1_000)
    (first,) = offer(preemptive, "quiet", max_tokens=25)
    offer(preemptive, "quiet", max_tokens=25)
    assert [job.id for job in worker.ask().started] == [first]
    worker.run(1_000)
    worker.end(first)
    answer = worker.ask()
    assert (len(answer.resume), answer.started, answer.ask_in_ms) == (1, [], 250)


def test_a_tenant_whose_jobs_follow_each_other_pauses_a_long_answer_once_a_quantum_at_most(preemptive):
    worker = a_worker(preemptive, slots=1)
    (long,) = offer(preemptive, "long", max_tokens=3_000)
    worker.ask()
    pauses = 0
    offer(preemptive, "short", max_tokens=1)
    for _ in range(100):
        pauses += long in worker.ask().pause
        for job_id in [i for i in worker.computing if i != long]:
            worker.computing[job_id][0] = 1
            worker.end(job_id)
            worker.ask()
            offer(preemptive, "short", max_tokens=1)
        worker.run(40)
    # In four seconds.
    assert 2 <= pauses <= 4


def test_one_slot_changes_hands_each_quantum_or_two(preemptive):
    worker = a_worker(preemptive, slots=1)
    offer(preemptive, "a")
    worker.ask()
    offer(preemptive, "b")
    turns = []
    for _ in range(12):
        worker.run(1_000)
        worker.ask()
        turns += worker.tenants()
    assert 4 <= turns.count("a") <= 8
    changes = sum(one != other for one, other in pairwise(turns))
    assert 4 <= changes <= 8


def test_a_heavier_tenant_computes_in_proportion_to_its_weight(preemptive):
    Tenants(preemptive.client).set("heavy", TenantPolicy(weight=4))
    worker = a_worker(preemptive, slots=1)
    offer(preemptive, "heavy", max_tokens=4_000)
    offer(preemptive, "light", max_tokens=4_000)
    worker.cells = 20_000
    worker.beat()
    turns = []
    for _ in range(60):
        worker.ask()
        turns += worker.tenants()
        worker.run(1_000)
    assert 44 <= turns.count("heavy") <= 52


def test_a_flood_of_one_token_jobs_does_not_alternate_with_a_long_answer_within_a_quantum(preemptive):
    worker = a_worker(preemptive, slots=1)
    (long,) = offer(preemptive, "long", max_tokens=4_000)
    worker.cells = 20_000
    worker.ask()
    offer(preemptive, "flood", 14, max_tokens=1)
    pauses = 0
    for _ in range(40):
        worker.run(50)
        for job_id in [i for i in worker.computing if i != long]:
            worker.computing[job_id][0] = 1
            worker.end(job_id)
        pauses += long in worker.ask().pause
    # In two seconds.
    assert 1 <= pauses <= 2
