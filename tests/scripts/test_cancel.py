"""Tests of the script `cancel`: it ends a queued job, flags a running one and hides another tenant's job."""

from dataclasses import replace
from itertools import permutations

import pytest

from shared.errors import Unconfirmed
from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.replies import Admitted, CancelAnswer, Rings
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    claim_one,
    contents,
    heartbeat,
    stat,
    view_of,
)


def test_a_queued_job_is_canceled_at_once_and_never_claimed(store):
    heartbeat(store)
    job_id, other = admitted(store, a_job()), admitted(store, a_job())
    assert store.cancel(job_id) is CancelAnswer.CANCELED
    view = view_of(store, job_id)
    assert (view.state, view.code, view.stage, view.finish_reason, view.text) == (
        JobState.CANCELED,
        "canceled",
        "queue",
        "canceled",
        None,
    )
    assert [job.id for job in claim(store, room=2)] == [other]
    assert stat(store, "ended|canceled") == 1


def test_canceling_a_tenants_last_queued_job_removes_the_tenant_from_the_active_set(store):
    heartbeat(store)
    store.cancel(admitted(store, a_job()))
    assert store.client.exists(keys.active(MODEL), keys.lists("blue"), keys.deadlines(), keys.inflight()) == 0


def test_canceling_a_running_job_flags_it_and_rings_its_workers_doorbell_once(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    assert store.cancel(held.id) is CancelAnswer.REQUESTED
    assert store.cancel(held.id) is CancelAnswer.REQUESTED
    view = view_of(store, held.id)
    assert (view.state, view.cancel_requested) == (JobState.RUNNING, True)
    assert store.client.lrange(keys.bell("w1"), 0, -1) == [held.id.encode()]
    assert store.wait_for_work("w1", MODEL, timeout_s=1) == Rings(canceled=[held.id])


def test_the_code_of_the_first_cancel_is_kept(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.cancel(held.id, code="abandoned")
    store.cancel(held.id, code="canceled")
    store.settle(an_ending(held), "w1")
    assert view_of(store, held.id).code == "abandoned"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_canceling_an_ended_job_changes_nothing(store, outcome):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held, outcome), "w1")
    before = contents(store)
    assert store.cancel(held.id) is CancelAnswer.ENDED
    assert contents(store) == before


@pytest.mark.parametrize("state", ["queued", "running", "ended"])
def test_canceling_another_tenants_job_is_answered_like_an_unknown_job(store, state):
    heartbeat(store)
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


def test_a_cancel_by_offer_id_ends_only_the_job_that_this_offer_admitted(store):
    heartbeat(store)
    job_id = admitted(store, a_job(offer="one"))
    before = contents(store)
    assert store.cancel(job_id, offer="two") is CancelAnswer.GONE
    assert contents(store) == before
    assert store.cancel(job_id, code="unheard", offer="one") is CancelAnswer.CANCELED


@pytest.mark.parametrize("by_key", [True, False])
def test_a_job_that_a_second_offer_has_found_is_canceled_by_neither_offer_id(store, by_key):
    heartbeat(store)
    first = a_job(idem_digest="k" if by_key else None, body_digest="b", offer="one")
    admitted(store, first)
    assert admitted(store, replace(first, id="another" if by_key else first.id, offer="two")) == first.id
    assert store.cancel(first.id, offer="one") is CancelAnswer.GONE
    assert store.cancel(first.id, offer="two") is CancelAnswer.GONE
    assert view_of(store, first.id).state is JobState.QUEUED


def test_a_repeat_of_the_same_offer_can_still_be_canceled_by_its_id(store):
    heartbeat(store)
    job = a_job(offer="one")
    assert admitted(store, job) == admitted(store, job)
    assert store.cancel(job.id, offer="one") is CancelAnswer.CANCELED


@pytest.fixture
def short_wait(monkeypatch):
    """Wait 1 ms for replicas, which the store lacks."""
    monkeypatch.setattr("shared.store.replication.ACK_TIMEOUT_MS", 1)


@pytest.mark.parametrize(("second", "offers"), [("one", b"one"), ("two", b"one two")])
def test_a_repeat_that_waits_for_replicas_writes_even_in_full_memory_and_joins_the_offers(
    store, memory_is_full, second, offers
):
    heartbeat(store)
    job = a_job(offer="one")
    admitted(store, job)
    for _ in range(2):
        with memory_is_full(), pytest.raises(Unconfirmed, match="0 of 1 replicas") as raised:
            store.admit(replace(job, offer=second), ack_replicas=1)
        assert raised.value.job_id == job.id
        assert store.client.hget(keys.rq_job(job.id), "penstock_offer") == offers


@pytest.mark.parametrize("order", list(permutations(["one", "two", "three"])))
@pytest.mark.usefixtures("short_wait")
def test_a_job_is_taken_back_by_the_last_of_the_offers_that_failed(store, order):
    heartbeat(store)
    job = a_job(offer="one", idem_digest="k", body_digest="b")
    repeats = [job, replace(job, offer="two"), replace(job, id="another", offer="three")]
    for repeat in repeats:
        with pytest.raises(Unconfirmed) as raised:
            store.admit(repeat, ack_replicas=1)
        assert raised.value.job_id == job.id
    for offer in order[:2]:
        # Each cancel is sent twice.
        assert [store.cancel(job.id, code="unheard", offer=offer) for _ in range(2)] == [CancelAnswer.GONE] * 2
        assert view_of(store, job.id).state is JobState.QUEUED
    assert store.cancel(job.id, code="unheard", offer=order[2]) is CancelAnswer.CANCELED


@pytest.mark.usefixtures("short_wait")
def test_a_job_that_a_client_has_is_not_taken_back_by_the_offers_that_failed(store):
    heartbeat(store)
    job = a_job(offer="one")
    admitted(store, job)
    for offer in ("two", "three"):
        with pytest.raises(Unconfirmed):
            store.admit(replace(job, offer=offer), ack_replicas=1)
        assert store.cancel(job.id, code="unheard", offer=offer) is CancelAnswer.GONE
    # A repeat that does not wait for replicas has received the id.
    admitted(store, replace(job, offer="four"))
    assert store.cancel(job.id, code="unheard", offer="one") is CancelAnswer.GONE
    with pytest.raises(Unconfirmed):
        store.admit(replace(job, offer="five"), ack_replicas=1)
    assert store.cancel(job.id, code="unheard", offer="five") is CancelAnswer.GONE
    assert view_of(store, job.id).state is JobState.QUEUED


@pytest.mark.usefixtures("short_wait")
def test_a_job_with_too_many_offers_is_never_taken_back(store):
    heartbeat(store)
    job = a_job(offer="0")
    admitted(store, job)
    for offer in range(1, 12):
        with pytest.raises(Unconfirmed):
            store.admit(replace(job, offer=str(offer)), ack_replicas=1)
    assert {store.cancel(job.id, offer=str(offer)) for offer in range(12)} == {CancelAnswer.GONE}


@pytest.mark.parametrize("running", [True, False])
def test_a_canceled_offer_is_reported_under_its_job_id_and_its_idempotency_key_admits_a_new_job(store, running):
    heartbeat(store)
    first = a_job(idem_digest="k", body_digest="b", offer="one")
    admitted(store, first)
    held = claim_one(store).held if running else None
    store.cancel(first.id, code="unheard", offer="one")
    again = store.admit(replace(first, offer="two"))
    assert isinstance(again, Admitted)
    assert (again.again, again.taken_back) == (True, True)
    anew = admitted(store, replace(first, id="anew", offer="two"))
    assert (anew, view_of(store, anew).state) == ("anew", JobState.QUEUED)
    if held:
        store.settle(an_ending(held), "w1")
        assert (view_of(store, first.id).state, view_of(store, first.id).code) == (JobState.CANCELED, "unheard")


def test_a_job_flagged_for_cancel_ends_canceled_when_its_worker_dies(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    claim_one(store)
    store.cancel(job_id)
    for _ in range(11):
        advance_clock(store, 1_500)
        heartbeat(store, "w2")
    assert store.reap().canceled == 1
    assert (view_of(store, job_id).state, view_of(store, job_id).code) == (JobState.CANCELED, "canceled")


def test_cancel_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    running = admitted(store, a_job("a"))
    claim_one(store)
    waiting = admitted(store, a_job("b"))
    with memory_is_full():
        assert store.cancel(waiting) is CancelAnswer.CANCELED
        assert store.cancel(running) is CancelAnswer.REQUESTED
    assert store.wait_for_work("w1", "none", timeout_s=1) == Rings(canceled=[running])
