"""Tests of the script `erase`, which removes an ended job's text and keeps the job."""

import pytest

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


def test_erase_works_when_memory_is_full(store, memory_is_full):
    job_id = an_ended_job(store)
    with memory_is_full():
        assert store.erase(job_id)
