"""Tests of jobs whose record in the store is corrupt: they fail, and the worker continues (fault 37)."""

import pytest

from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.store import keys


def delete(client, payload):
    client.delete(payload)


def write_no_json(client, payload):
    client.set(payload, b"\xff{not json")


def write_no_object(client, payload):
    client.set(payload, "[1, 2]")


def write_no_prompt(client, payload):
    client.set(payload, '{"max_tokens": 20}')


def write_no_text(client, payload):
    client.set(payload, '{"prompt": 7}')


def write_wrong_type(client, payload):
    client.delete(payload)
    client.rpush(payload, "a", "b")


@pytest.mark.parametrize(
    "corrupt", [delete, write_no_json, write_no_object, write_no_prompt, write_no_text, write_wrong_type]
)
def test_a_job_whose_payload_is_corrupt_fails_and_the_other_jobs_succeed(stage, corrupt):
    worker = stage.worker()
    worker.pause()
    before, corrupt_id, after = stage.admit("a"), stage.admit("b"), stage.admit("c")
    corrupt(stage.client, keys.payload(corrupt_id))
    worker.resume()
    views = stage.ended(before, corrupt_id, after)
    assert [view.state for view in views] == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
    assert views[1].code == EndCode.CORRUPT
    assert views[1].usage.prompt_tokens == 0
    assert worker.alive


def test_a_job_that_the_engine_rejects_fails_with_a_code_and_adds_no_service(stage):
    stage.worker(PENSTOCK_N_CTX="64")
    served = stage.store.snapshot().tenants
    too_long = stage.admit(max_tokens=100, payload={"prompt": "one two", "max_tokens": 100})
    invalid = stage.admit(payload={"prompt": "one two", "temperature": "hot"})
    views = stage.ended(too_long, invalid)
    assert [view.code for view in views] == [EndCode.CONTEXT_LENGTH_EXCEEDED, EndCode.INVALID_VALUE]
    assert "temperature='hot'" in views[1].message
    assert served == []
    (tenant,) = stage.store.snapshot().tenants
    assert stage.client.hget(keys.tenant(tenant.name), keys.service_field("sim")) in {None, b"0"}


def test_a_job_whose_event_stream_cannot_be_written_still_succeeds(stage):
    stage.worker()
    job_id = stage.admit(max_tokens=50)
    stage.wait_for_text(job_id)
    stage.client.set(keys.events(job_id), "not a stream", keepttl=True)
    (view,) = stage.ended(stage.admit("green"))
    assert view.state is JobState.SUCCEEDED
    stage.client.delete(keys.events(job_id))
    (view,) = stage.ended(job_id)
    assert len(view.text.split()) == 50
