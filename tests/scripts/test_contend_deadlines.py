"""Tests that pauses cost few promises: jobs that cannot afford one keep their slots, and few jobs wait half done."""

import pytest

from shared.store.store import Store
from tests.support.builders import hold_clock
from tests.support.contending import Worker, a_worker, offer

pytestmark = pytest.mark.rq

#: A slot of the worker generates a token in this time, so 100 tokens take 4 s.
TPOT_MS = 40


def a_timed_worker(store: Store, slots: int = 4) -> Worker:
    hold_clock(store)
    return a_worker(store, slots, rates={"tpot_ms": TPOT_MS})


def answers(tokens: int) -> dict[str, int]:
    """Return the fields of a job that is expected to have an answer of this length."""
    return {"max_tokens": tokens, "cost_mwt": 1_000 * (10 + 4 * tokens)}


def test_jobs_that_would_be_late_after_a_pause_keep_their_slots_from_a_tenant_below_its_share(preemptive):
    worker = a_timed_worker(preemptive)
    offer(preemptive, "loud", 4, **answers(100), deadline_ms=4_600)
    worker.ask()
    worker.run(400)
    (quick,) = offer(preemptive, "quiet")
    answer = worker.ask()
    assert (answer.pause, answer.started) == ([], [])
    worker.end(next(iter(worker.computing)))
    assert [job.id for job in worker.ask().started] == [quick]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_tenant_that_names_tight_deadlines_keeps_the_slots_for_a_few_quanta_only(preemptive, slots):
    worker = a_timed_worker(preemptive, slots)
    tight = offer(preemptive, "loud", slots, **answers(128), deadline_ms=6_000)
    worker.ask()
    worker.run(100)
    (quick,) = offer(preemptive, "quiet")
    waited_ms = 0
    while not (answer := worker.ask()).started:
        worker.run(answer.ask_in_ms)
        waited_ms += answer.ask_in_ms
    assert ([job.id for job in answer.started], len(answer.pause)) == ([quick], 1)
    assert answer.pause[0] in tight
    assert waited_ms <= 4_000


def test_a_paused_job_that_would_be_late_after_another_quantum_continues_before_all_others(preemptive):
    worker = a_timed_worker(preemptive, 1)
    (long,) = offer(preemptive, "long", **answers(128), deadline_ms=7_000)
    worker.ask()
    worker.run(1_000)
    (quick,) = offer(preemptive, "quiet", **answers(25))
    assert worker.ask().pause == [long]
    offer(preemptive, "other", **answers(25))
    worker.run(1_000)
    worker.end(quick)
    answer = worker.ask()
    assert (answer.resume, answer.started) == ([long], [])


def test_a_paused_job_that_has_time_waits_for_its_tenants_turn(preemptive):
    worker = a_timed_worker(preemptive, 1)
    (long,) = offer(preemptive, "long", **answers(128), deadline_ms=60_000)
    worker.ask()
    worker.run(1_000)
    (quick,) = offer(preemptive, "quiet", **answers(25))
    assert worker.ask().pause == [long]
    (other,) = offer(preemptive, "other", **answers(25))
    worker.run(1_000)
    worker.end(quick)
    answer = worker.ask()
    assert (answer.resume, [job.id for job in answer.started]) == ([], [other])


@pytest.mark.parametrize(("newcomers", "jobs", "paused"), [(1, 8, 8), (10, 1, 4)])
def test_the_more_tenants_want_slots_the_fewer_jobs_are_paused(preemptive, newcomers, jobs, paused):
    """Each paused job makes all others later, and in a pool of many slots one is free soon anyway."""
    worker = a_worker(preemptive, slots=16, cells=16_384)
    for i in range(8):
        offer(preemptive, f"first{i}", 2) if newcomers > 1 else offer(preemptive, "first", 2)
    worker.ask()
    worker.run(600)
    for i in range(newcomers):
        offer(preemptive, f"newcomer{i}", jobs)
    assert len(worker.ask().pause) == paused
