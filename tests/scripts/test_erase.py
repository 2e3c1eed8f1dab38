"""Tests of the script `erase`, which removes an ended job's text and keeps the job."""

import pytest

from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import keys
from tests.support.builders import a_job, admitted, an_ending, claim_one, contents, heartbeat, view_of


def an_ended_job(store, tenant: str = "blue") -> str:
    heartbeat(store)
    job_id = admitted(store, a_job(tenant))
    store.settle(an_ending(claim_one(store).held), "w1")
    return job_id


def test_erase_removes_an_ended_jobs_text_and_event_stream_and_keeps_the_job(store):
    job_id = an_ended_job(store)
    assert store.erase(job_id, tenant="blue")
    assert store.client.exists(keys.result(job_id), keys.events(job_id)) == 0
    view = view_of(store, job_id)
    assert (view.state, view.text, view.usage) == (JobState.SUCCEEDED, None, None)
    assert not store.erase(job_id)


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_job_that_has_not_ended_keeps_everything(store, state):
    heartbeat(store)
    job_id = admitted(store, a_job())
    if state == "running":
        claim_one(store)
    before = contents(store)
    assert not store.erase(job_id)
    assert contents(store) == before


def test_another_tenants_text_is_not_erased(store):
    job_id = an_ended_job(store, "green")
    before = contents(store)
    assert not store.erase(job_id, tenant="blue")
    assert not store.erase("never-was")
    assert contents(store) == before


def test_the_request_of_a_job_that_keeps_it_expires_with_its_result_and_is_erased_with_it(store):
    heartbeat(store)
    job_id = admitted(store, a_job(keeps_request=True, payload={"messages": ["hello"]}))
    store.settle(an_ending(claim_one(store).held), "w1")
    assert store.kept_request(job_id) == {"messages": ["hello"]}
    assert 0 < store.client.ttl(keys.payload(job_id)) <= store.client.ttl(keys.result(job_id))
    assert store.erase(job_id, tenant="blue", form='{"store":false}')
    assert store.client.exists(keys.result(job_id), keys.payload(job_id)) == 0
    assert store.kept_request(job_id) is None
    assert view_of(store, job_id).form == {"store": False}


@pytest.mark.parametrize("outcome", ["failed", "expired"])
def test_the_request_of_a_job_that_did_not_succeed_is_not_kept(store, outcome):
    heartbeat(store)
    job_id = admitted(store, a_job(keeps_request=True))
    store.settle(an_ending(claim_one(store).held, outcome=Outcome(outcome)), "w1")
    assert store.client.exists(keys.payload(job_id)) == 0


@pytest.mark.parametrize("spoiled", ["[1]", "no json", "["])
def test_a_kept_request_that_another_program_has_changed_counts_as_none(store, spoiled):
    heartbeat(store)
    job_id = admitted(store, a_job(keeps_request=True))
    store.settle(an_ending(claim_one(store).held), "w1")
    store.client.set(keys.payload(job_id), spoiled, keepttl=True)
    assert store.kept_request(job_id) is None
    store.client.delete(keys.payload(job_id))
    store.client.lpush(keys.payload(job_id), "x")
    store.client.expire(keys.payload(job_id), 60)
    assert store.kept_request(job_id) is None
    assert store.erase(job_id)


def test_erase_works_when_memory_is_full(store, memory_is_full):
    job_id = an_ended_job(store)
    with memory_is_full():
        assert store.erase(job_id)
