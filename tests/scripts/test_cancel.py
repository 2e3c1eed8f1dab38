"""cancel: a waiting job ends at once, a running one is flagged, nobody else's is known."""

from dataclasses import replace

import pytest

from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.replies import Admitted, CancelAnswer
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    beat,
    claim,
    claim_one,
    contents,
    seen,
    shift,
    stat,
)


def test_a_waiting_job_is_canceled_at_once_and_never_claimed(store):
    beat(store)
    job_id, other = admitted(store, a_job()), admitted(store, a_job())
    assert store.cancel(job_id) is CancelAnswer.CANCELED
    view = seen(store, job_id)
    assert (view.state, view.code, view.stage, view.finish_reason, view.text) == (
        JobState.CANCELED,
        "canceled",
        "queue",
        "canceled",
        None,
    )
    assert [job.id for job in claim(store, room=2)] == [other]
    assert stat(store, "ended|canceled") == 1


def test_the_last_waiting_job_takes_its_tenant_out_of_the_pool(store):
    beat(store)
    store.cancel(admitted(store, a_job()))
    assert store.client.exists(keys.active(MODEL), keys.lists("blue"), keys.deadlines(), keys.inflight()) == 0


def test_a_running_job_is_flagged_and_its_holders_bell_rung_once(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    assert store.cancel(held.id) is CancelAnswer.REQUESTED
    assert store.cancel(held.id) is CancelAnswer.REQUESTED
    view = seen(store, held.id)
    assert (view.state, view.cancel_requested) == (JobState.RUNNING, True)
    assert store.client.lrange(keys.bell("w1"), 0, -1) == [held.id.encode()]
    assert store.wait_for_work("w1", MODEL, timeout_s=1) == (False, [held.id])


def test_the_first_reason_to_cancel_stands(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.cancel(held.id, code="abandoned")
    store.cancel(held.id, code="canceled")
    store.settle(an_ending(held), "w1")
    assert seen(store, held.id).code == "abandoned"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_ended_job_stays_as_it_ended(store, outcome):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held, outcome), "w1")
    before = contents(store)
    assert store.cancel(held.id) is CancelAnswer.ENDED
    assert contents(store) == before


@pytest.mark.parametrize("state", ["queued", "running", "ended"])
def test_another_tenants_job_is_gone_like_one_that_never_was(store, state):
    beat(store)
    job_id = admitted(store, a_job("green"))
    if state != "queued":
        held = claim_one(store).held
        if state == "ended":
            store.settle(an_ending(held), "w1")
    before = contents(store)
    assert store.cancel(job_id, tenant="blue") is CancelAnswer.GONE
    assert store.cancel("never-was", tenant="blue") is CancelAnswer.GONE
    assert contents(store) == before
    assert store.cancel(job_id, tenant="green") is not CancelAnswer.GONE


def test_an_offering_takes_back_what_it_made_and_nobody_else_s(store):
    beat(store)
    job_id = admitted(store, a_job(offer="one"))
    before = contents(store)
    assert store.cancel(job_id, offer="two") is CancelAnswer.GONE
    assert contents(store) == before
    assert store.cancel(job_id, code="unheard", offer="one") is CancelAnswer.CANCELED


@pytest.mark.parametrize("by_key", [True, False])
def test_what_somebody_has_come_back_for_is_not_taken_back(store, by_key):
    beat(store)
    first = a_job(idem_digest="k" if by_key else None, body_digest="b", offer="one")
    admitted(store, first)
    assert admitted(store, replace(first, id="another" if by_key else first.id, offer="two")) == first.id
    assert store.cancel(first.id, offer="one") is CancelAnswer.GONE
    assert store.cancel(first.id, offer="two") is CancelAnswer.GONE
    assert seen(store, first.id).state is JobState.QUEUED


def test_a_door_that_asks_twice_by_itself_has_not_come_back(store):
    beat(store)
    job = a_job(offer="one")
    assert admitted(store, job) == admitted(store, job)
    assert store.cancel(job.id, offer="one") is CancelAnswer.CANCELED


@pytest.mark.parametrize("running", [True, False])
def test_what_was_taken_back_is_admitted_anew_by_its_key_and_told_by_its_id(store, running):
    beat(store)
    first = a_job(idem_digest="k", body_digest="b", offer="one")
    admitted(store, first)
    held = claim_one(store).held if running else None
    store.cancel(first.id, code="unheard", offer="one")
    again = store.admit(replace(first, offer="two"))
    assert isinstance(again, Admitted)
    assert (again.again, again.taken_back) == (True, True)
    anew = admitted(store, replace(first, id="anew", offer="two"))
    assert (anew, seen(store, anew).state) == ("anew", JobState.QUEUED)
    if held:
        store.settle(an_ending(held), "w1")
        assert (seen(store, first.id).state, seen(store, first.id).code) == (JobState.CANCELED, "unheard")


def test_a_flagged_job_whose_worker_died_ends_canceled(store):
    beat(store)
    job_id = admitted(store, a_job())
    claim_one(store)
    store.cancel(job_id)
    for _ in range(11):
        shift(store, 1_500)
        beat(store, "w2")
    assert store.reap().canceled == 1
    assert (seen(store, job_id).state, seen(store, job_id).code) == (JobState.CANCELED, "canceled")


def test_cancels_go_on_without_memory(store, memory_is_full):
    beat(store)
    running = admitted(store, a_job("a"))
    claim_one(store)
    waiting = admitted(store, a_job("b"))
    with memory_is_full():
        assert store.cancel(waiting) is CancelAnswer.CANCELED
        assert store.cancel(running) is CancelAnswer.REQUESTED
    assert store.wait_for_work("w1", "none", timeout_s=1) == (False, [running])
