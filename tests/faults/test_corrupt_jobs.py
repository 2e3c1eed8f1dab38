"""Jobs whose record somebody broke: they fail, and the loop goes on (fault 37)."""

import pytest

from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.store import keys


def gone(client, payload):
    client.delete(payload)


def no_json(client, payload):
    client.set(payload, b"\xff{not json")


def no_object(client, payload):
    client.set(payload, "[1, 2]")


def no_prompt(client, payload):
    client.set(payload, '{"max_tokens": 20}')


def no_text(client, payload):
    client.set(payload, '{"prompt": 7}')


def wrong_type(client, payload):
    client.delete(payload)
    client.rpush(payload, "a", "b")


@pytest.mark.parametrize("broken", [gone, no_json, no_object, no_prompt, no_text, wrong_type])
def test_a_job_whose_payload_is_broken_fails_and_its_neighbours_do_not(stage, broken):
    worker = stage.worker()
    worker.pause()
    before, corrupt, after = stage.admit("a"), stage.admit("b"), stage.admit("c")
    broken(stage.client, keys.payload(corrupt))
    worker.resume()
    views = stage.ended(before, corrupt, after)
    assert [view.state for view in views] == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
    assert views[1].code == EndCode.CORRUPT
    assert views[1].usage.prompt_tokens == 0
    assert worker.alive


def test_a_request_that_the_engine_rejects_fails_with_its_code_and_charges_nothing(stage):
    stage.worker(PENSTOCK_N_CTX="64")
    served = stage.store.snapshot().tenants
    too_long = stage.admit(max_tokens=100, payload={"prompt": "one two", "max_tokens": 100})
    nonsense = stage.admit(payload={"prompt": "one two", "temperature": "hot"})
    views = stage.ended(too_long, nonsense)
    assert [view.code for view in views] == [EndCode.CONTEXT_LENGTH_EXCEEDED, EndCode.INVALID_VALUE]
    assert "temperature='hot'" in views[1].message
    assert served == []
    assert [tenant.service_mwt for tenant in stage.store.snapshot().tenants] == [0]


def test_a_stream_that_cannot_be_written_costs_its_followers_and_not_the_job(stage):
    stage.worker()
    job_id = stage.admit(max_tokens=50)
    stage.speaks(job_id)
    stage.client.set(keys.events(job_id), "somebody's hand", keepttl=True)
    (view,) = stage.ended(stage.admit("green"))
    assert view.state is JobState.SUCCEEDED
    stage.client.delete(keys.events(job_id))
    (view,) = stage.ended(job_id)
    assert len(view.text.split()) == 50
