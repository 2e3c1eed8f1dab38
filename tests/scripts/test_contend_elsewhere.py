"""Tests of the script `claim`: when a paused job leaves its worker, because another one has a free slot for it."""

import pytest

from shared.jobs.states import JobState
from shared.store import keys
from shared.store.replies import ClaimRequest
from tests.support.answers import FINGERPRINT, Answer
from tests.support.builders import MODEL, advance_clock, an_ending, heartbeat, hold_clock, reconfigure, view_of
from tests.support.contending import QUANTUM_MS, Worker, offer

FACTS = {"fingerprint": FINGERPRINT, "prefill_tps": 1_000, "tpot_ms": 40}


@pytest.fixture
def preemptive(store, settings):
    """The store with preemption."""
    hold_clock(store)
    reconfigure(store, settings, preemption="on", quantum_ms=QUANTUM_MS)
    return store


def beat(worker: Worker, *, busy: int | None = None, **overrides) -> None:
    held = [one.held for one in worker.report()]
    given = {"facts": FACTS, "slots": worker.slots, "cells": worker.cells, "cells_free": worker.cells_free}
    busy = len(worker.computing) if busy is None else busy
    heartbeat(worker.store, worker.name, *held, **given | {"slots_busy": busy} | overrides)


def with_a_paused_job(store, *, ids: int = 30, **fields):
    """Return a worker with one slot, which a second tenant's long answer has, and the id of the job that it paused."""
    worker = Worker(store, slots=1, cells=10_000)
    beat(worker)
    (first,) = offer(store, "loud", **fields)
    worker.ask()
    if ids:
        Answer(store, worker.claims[first]).goes_on("words", range(ids))
    worker.run(1_200)
    (second,) = offer(store, "rival", max_tokens=200)
    worker.ask()
    assert (list(worker.computing), list(worker.paused)) == ([second], [first])
    return worker, first


def another(store, **overrides) -> Worker:
    """Return an idle worker with the same model."""
    idle = Worker(store, slots=1, name="w2")
    beat(idle, **overrides)
    return idle


def pause_on(worker: Worker, ms: int) -> None:
    """Let the pause last while the other job computes."""
    advance_clock(worker.store, ms)
    beat(worker)


def test_a_job_that_is_paused_for_a_quantum_continues_where_a_slot_is_free(preemptive):
    worker, job_id = with_a_paused_job(preemptive)
    idle = another(preemptive)
    pause_on(worker, QUANTUM_MS - 10)
    assert worker.ask().lost == []
    pause_on(worker, 10)
    beat(idle)
    assert worker.ask().lost == [job_id]
    view = view_of(preemptive, job_id)
    assert (view.state, view.attempts) == (JobState.QUEUED, 0)
    (taken,) = idle.ask().started
    assert (taken.id, taken.answer) == (job_id, tuple(range(30)))
    assert preemptive.client.hget(keys.books(MODEL), "paused") == b"0"
    preemptive.settle(an_ending(taken.held), "w2")


def test_a_job_does_not_leave_for_a_worker_that_is_much_slower(preemptive):
    """It could be late there, and a worker that is too slow for it leaves it to the faster one again."""
    worker, _ = with_a_paused_job(preemptive)
    idle = another(preemptive, facts=FACTS | {"tpot_ms": 60})
    pause_on(worker, QUANTUM_MS)
    beat(idle, facts=FACTS | {"tpot_ms": 60})
    assert worker.ask().lost == []


def test_a_job_does_not_leave_for_a_worker_that_reads_its_prompt_for_longer_than_it_would_wait(preemptive):
    worker, _ = with_a_paused_job(preemptive)
    idle = another(preemptive, facts=FACTS | {"prefill_tps": 10})
    pause_on(worker, QUANTUM_MS)
    beat(idle, facts=FACTS | {"prefill_tps": 10})
    assert worker.ask().lost == []


def test_a_repeated_claim_says_again_that_the_job_has_left(preemptive):
    worker, job_id = with_a_paused_job(preemptive)
    pause_on(worker, QUANTUM_MS)
    another(preemptive)
    report = worker.report()
    for _ in range(2):
        answer = preemptive.contend("w1", ClaimRequest("c9", MODEL, room=0, cells_free=100, held=report))
        assert answer.lost == [job_id]
    assert view_of(preemptive, job_id).state is JobState.QUEUED


@pytest.mark.parametrize(
    "overrides",
    [
        {"busy": 1},
        {"draining": True},
        {"cells_free": 100},
        {"facts": FACTS | {"fingerprint": "another model"}},
    ],
    ids=["busy", "draining", "no cells", "another model"],
)
def test_a_job_stays_if_no_other_worker_can_continue_with_it(preemptive, overrides):
    worker, _ = with_a_paused_job(preemptive)
    pause_on(worker, QUANTUM_MS)
    another(preemptive, **overrides)
    assert worker.ask().lost == []


def test_a_job_stays_if_the_other_worker_is_gone(preemptive):
    worker, _ = with_a_paused_job(preemptive)
    another(preemptive)
    for _ in range(6):
        pause_on(worker, 1_000)
    assert worker.report()[-1].slot_ms is None
    assert preemptive.contend("w1", ClaimRequest("c9", MODEL, room=0, cells_free=100, held=worker.report())).lost == []


def test_a_job_stays_while_another_job_is_queued_that_would_take_the_slot(preemptive):
    worker, _ = with_a_paused_job(preemptive)
    pause_on(worker, QUANTUM_MS)
    another(preemptive)
    offer(preemptive, "third")
    assert worker.ask().lost == []


def test_a_job_stays_if_nobody_could_continue_after_its_tokens(preemptive):
    worker, _ = with_a_paused_job(preemptive, ids=0)
    pause_on(worker, QUANTUM_MS)
    another(preemptive)
    assert worker.ask().lost == []


def test_a_job_stays_if_its_prompt_takes_longer_than_its_worker_has_no_slot_for_it(preemptive):
    # The other answer takes 8 s, and this prompt 5 s.
    worker, _ = with_a_paused_job(preemptive, prompt_tokens=5_000)
    pause_on(worker, QUANTUM_MS)
    another(preemptive, cells=10_000, cells_free=10_000)
    assert worker.ask().lost == []
