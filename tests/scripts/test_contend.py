"""Tests of the script `claim` with held jobs: which running jobs give their slots to which tenants."""

from dataclasses import replace

import pytest

from shared.jobs.job import ClaimRef
from shared.store import keys
from shared.store.replies import ClaimReply, ClaimRequest, HeldProgress
from tests.support.builders import MODEL, advance_clock, an_ending, heartbeat, hold_clock, reconfigure, view_of
from tests.support.contending import a_worker, after_a_pause, offer

pytestmark = pytest.mark.rq


def test_a_newcomer_gets_a_slot_of_a_tenant_that_has_them_all(preemptive):
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 6)
    assert [job.tenant for job in worker.ask().started] == ["loud"] * 4
    worker.run(400)
    (quick,) = offer(preemptive, "quiet")
    answer = worker.ask()
    assert ([job.id for job in answer.started], len(answer.pause), answer.resume, answer.lost) == ([quick], 1, [], [])
    assert worker.tenants() == ["loud", "loud", "loud", "quiet"]
    worker.run(200)
    worker.end(quick)
    assert worker.ask().resume == answer.pause


def test_two_tenants_get_equal_numbers_of_slots_and_keep_them(preemptive):
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 8)
    worker.ask()
    worker.run(300)
    worker.ask()
    offer(preemptive, "rival", 8)
    assert len(worker.ask().pause) == 2
    for _ in range(10):
        assert worker.tenants() == ["loud", "loud", "rival", "rival"]
        worker.run(1_000)
        assert worker.ask().pause == []


def test_no_job_is_paused_in_its_first_quarter_of_a_quantum(preemptive):
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 6)
    worker.ask()
    worker.run(240)
    offer(preemptive, "quiet")
    answer = worker.ask()
    assert (answer.pause, answer.started) == ([], [])
    assert 10 <= answer.ask_in_ms <= 250
    worker.run(10)
    assert len(worker.ask().pause) == 1


def test_with_one_tenant_nothing_is_paused_and_no_further_call_is_needed(preemptive):
    worker = a_worker(preemptive)
    offer(preemptive, "alone", 9)
    assert worker.ask().ask_in_ms == -1
    worker.run(5_000)
    answer = worker.ask()
    assert (answer.pause, answer.started, answer.ask_in_ms) == ([], [], -1)


def test_without_preemption_nothing_is_paused(store, settings):
    reconfigure(store, settings, preemption="off")
    worker = a_worker(store)
    offer(store, "loud", 6)
    worker.ask()
    worker.run(3_000)
    offer(store, "quiet")
    assert worker.ask() == ClaimReply([], [], [], [])


def test_a_repeated_claim_id_gets_the_same_answer_even_if_the_report_is_another(preemptive):
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 6)
    worker.ask()
    worker.run(400)
    (quick,) = offer(preemptive, "quiet")
    before = worker.report()
    first = preemptive.contend("w1", ClaimRequest("c7", MODEL, room=0, cells_free=1_000, held=before))
    again = preemptive.contend("w1", ClaimRequest("c7", MODEL, room=0, cells_free=1_000, held=before))
    assert len(first.pause) == 1
    assert [job.id for job in again.started] == [job.id for job in first.started] == [quick]
    assert (again.pause, again.resume) == (first.pause, first.resume)


def test_the_report_of_a_worker_that_lost_an_answer_wins(preemptive):
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 6)
    worker.ask()
    worker.run(400)
    offer(preemptive, "quiet")
    (paused,) = preemptive.contend(
        "w1", ClaimRequest("lost", MODEL, room=0, cells_free=1_000, held=worker.report())
    ).pause
    assert preemptive.client.hget(keys.books(MODEL), "paused") == b"1"
    worker.run(100)
    worker.ask()
    assert paused in worker.computing
    assert preemptive.client.hget(keys.books(MODEL), "paused") == b"0"


def test_the_sum_of_pauses_stands_in_the_record(preemptive):
    hold_clock(preemptive)
    worker, paused = after_a_pause(preemptive)
    worker.ask()
    record = preemptive.client.hgetall(keys.rq_job(paused))
    assert record[b"penstock_paused_ms"] == b"300"
    assert b"penstock_paused_since_ms" not in record
    assert view_of(preemptive, paused).state.value == "running"


@pytest.mark.parametrize("how", ["settle", "release", "lease", "cancel"])
def test_a_paused_job_that_leaves_its_worker_is_counted_no_longer(preemptive, how):
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 4)
    worker.ask()
    worker.run(400)
    offer(preemptive, "quiet")
    (paused,) = worker.ask().pause
    if how == "settle":
        worker.end(paused)
    elif how == "release":
        assert preemptive.release("w1", [worker.claims[paused].held]) == 1
    elif how == "cancel":
        preemptive.cancel(paused)
        preemptive.settle(an_ending(worker.claims[paused].held), "w1")
    else:
        for _ in range(12):
            heartbeat(preemptive, "w2")
            advance_clock(preemptive, 1_500)
        heartbeat(preemptive, "w2")
        preemptive.reap()
    assert preemptive.client.hget(keys.books(MODEL), "paused") == b"0"
    assert preemptive.client.hget(keys.tenant("loud"), "paused") == b"0"
    assert preemptive.client.hget(keys.rows(MODEL), "p|loud") is None


def test_a_tenant_with_only_a_paused_job_has_its_turn_and_no_advantage_of_a_newcomer(preemptive):
    worker = a_worker(preemptive, slots=1)
    offer(preemptive, "a")
    worker.ask()
    worker.run(2_000)
    offer(preemptive, "b", 2)
    worker.ask()
    worker.run(1_000)
    worker.ask()
    assert worker.tenants() == ["b"]
    active = dict(preemptive.client.zrange(keys.active(MODEL), 0, -1, withscores=True))
    assert set(active) == {b"a", b"b"}
    offer(preemptive, "a")
    assert dict(preemptive.client.zrange(keys.active(MODEL), 0, -1, withscores=True))[b"a"] == active[b"a"]


def test_a_job_that_does_not_fit_even_after_a_pause_pauses_none(preemptive):
    worker = a_worker(preemptive, slots=2, cells=500)
    offer(preemptive, "loud", 2, max_tokens=200)
    worker.ask()
    worker.run(400)
    (large,) = offer(preemptive, "quiet", max_tokens=400)
    assert worker.ask().pause == []
    assert preemptive.client.hget(keys.rq_job(large), "penstock_skips") is None
    offer(preemptive, "other", max_tokens=200)
    assert len(worker.ask().pause) == 1


def test_as_many_jobs_are_paused_as_the_worker_has_slots_at_most(preemptive):
    worker = a_worker(preemptive, slots=1)
    for tenant in ("a", "b", "c"):
        offer(preemptive, tenant, 2)
    for _ in range(20):
        worker.ask()
        worker.run(1_000)
    assert len(worker.paused) == 1


def test_a_lost_job_is_told_and_does_not_count(preemptive):
    worker = a_worker(preemptive)
    offer(preemptive, "loud", 1)
    worker.ask()
    ghost = HeldProgress(ClaimRef("nobody", "x"), 3, 0, 500)
    offer(preemptive, "loud", 4)
    answer = preemptive.contend(
        "w1", ClaimRequest("c9", MODEL, room=3, cells_free=4_096, held=[*worker.report(), ghost])
    )
    assert answer.lost == ["nobody"]


def test_the_mode_auto_pauses_jobs_only_where_turns_count_tokens(settings):
    modes = {("auto", "tokens"): True, ("auto", "turns"): False, ("on", "turns"): True, ("off", "tokens"): False}
    for (preemption, fairness), preempts in modes.items():
        assert replace(settings, preemption=preemption, fairness=fairness).preempts is preempts
