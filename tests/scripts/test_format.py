"""Tests of the number of the store's format: which versions work on one store together, and which refuse to."""

import re

import pytest

from shared import schema
from shared.errors import SchemaConflict
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.preflight import check_format
from shared.store.scripts import read
from tests.support.builders import (
    a_job,
    admitted,
    an_ending,
    claim,
    claim_one,
    heartbeat,
    pass_time,
    refused,
    view_of,
)
from tests.support.cell import empty

NEWER = schema.NUMBER + 6


def numbers(store):
    stored = store.client.hmget(keys.config(), ["schema", "schema_oldest"])
    return [None if number is None else int(number) for number in stored]


def upgrade(store, oldest=NEWER):
    """Write what a process of a newer version writes when it starts."""
    store.client.hset(keys.config(), mapping={"schema": NEWER, "schema_oldest": oldest})


def refusal(store, settings, **options):
    with pytest.raises(SchemaConflict) as caught:
        store.configure(settings, **options)
    return str(caught.value)


def test_the_first_process_writes_the_number(store):
    assert numbers(store) == [schema.NUMBER, schema.WORKS_BESIDE]


def test_a_store_of_a_version_without_numbers_is_taken_for_format_1(store, settings):
    heartbeat(store)
    job_id = admitted(store, a_job())
    store.client.hdel(keys.config(), "schema", "schema_oldest")
    store.configure(settings)
    assert numbers(store) == [schema.NUMBER, schema.WORKS_BESIDE]
    assert view_of(store, job_id).state is JobState.QUEUED


def test_this_version_works_beside_a_newer_one_whose_format_it_can_use(store, settings):
    upgrade(store, oldest=schema.NUMBER)
    store.configure(settings)
    assert numbers(store) == [NEWER, schema.NUMBER]
    assert heartbeat(store).drain is False
    job_id = admitted(store, a_job())
    assert store.settle(an_ending(claim_one(store)), "w1").outcome == "succeeded"
    assert view_of(store, job_id).state is JobState.SUCCEEDED
    check_format(store.client)


@pytest.mark.parametrize("take_over", [False, True])
def test_this_version_refuses_a_store_that_it_cannot_use_and_changes_nothing(store, settings, take_over):
    upgrade(store, oldest=NEWER - 1)
    before = store.client.hgetall(keys.config())
    message = refusal(store, settings, take_over=take_over)
    assert f"the store has format {NEWER}" in message
    assert f"from format {NEWER - 1} on" in message
    assert f"this version of Penstock has format {schema.NUMBER}" in message
    assert "upgrade" in message
    assert store.client.hgetall(keys.config()) == before
    with pytest.raises(SchemaConflict, match=re.escape(message)):
        check_format(store.client)


def test_a_version_that_cannot_read_the_stores_old_format_refuses_it(store, settings, monkeypatch):
    monkeypatch.setattr(schema, "READS_FROM", schema.NUMBER + 1)
    message = refusal(store, settings)
    assert f"the store has format {schema.NUMBER}" in message
    assert f"can use format {schema.NUMBER + 1} or newer" in message
    store.client.hdel(keys.config(), "schema")
    assert "the store has format 1" in refusal(store, settings)
    with pytest.raises(SchemaConflict):
        check_format(store.client)


def test_an_empty_store_is_refused_by_no_version(redis_client, store, settings, monkeypatch):
    empty(redis_client)
    monkeypatch.setattr(schema, "READS_FROM", schema.NUMBER + 1)
    store.configure(settings)
    assert numbers(store) == [schema.NUMBER, schema.WORKS_BESIDE]


def test_the_oldest_format_never_falls(store, settings, monkeypatch):
    monkeypatch.setattr(schema, "WORKS_BESIDE", schema.NUMBER)
    store.configure(settings)
    monkeypatch.setattr(schema, "WORKS_BESIDE", 0)
    store.configure(settings)
    assert numbers(store) == [schema.NUMBER, schema.NUMBER]


def test_when_a_newer_version_shuts_this_one_out_its_workers_drain_and_its_doors_refuse(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    held = claim_one(store)
    waiting_id = admitted(store, a_job())
    upgrade(store)
    assert heartbeat(store, "w1", held).drain is True
    assert claim(store) == []
    assert refused(store, a_job()).reason == "draining"
    assert store.overview().draining
    assert store.snapshot().draining
    assert store.settle(an_ending(held), "w1").outcome == "succeeded"
    assert view_of(store, job_id).state is JobState.SUCCEEDED
    assert view_of(store, waiting_id).state is JobState.QUEUED


def test_a_process_that_is_shut_out_takes_no_jobs_back_and_lets_none_expire(store):
    heartbeat(store)
    running_id, waiting_id = (admitted(store, a_job(deadline_ms=ms)) for ms in (600_000, 20_000))
    claim(store)
    upgrade(store)
    pass_time(store, 25_000)
    assert (store.reap().moved, store.reap().due_in_ms) == (0, None)
    states = {view_of(store, job_id).state for job_id in (running_id, waiting_id)}
    assert states == {JobState.RUNNING, JobState.QUEUED}


@pytest.mark.parametrize("spoiled", ["", "abc", "-3", "1e9", "9" * 20, "10000", "nan", "1.5", "2e0", "0x2", " 2"])
@pytest.mark.parametrize("field", ["schema", "schema_oldest"])
def test_a_spoiled_number_shuts_nobody_out_and_is_replaced(store, settings, field, spoiled):
    store.client.hset(keys.config(), field, spoiled)
    assert heartbeat(store).drain is False
    check_format(store.client)
    store.configure(settings)
    assert numbers(store) == [schema.NUMBER, schema.WORKS_BESIDE]


def test_the_scripts_and_the_python_code_have_the_same_number():
    source = read("lib/base/schema.lua")[1]
    assert f"local SCHEMA, MAX_SCHEMA = {schema.NUMBER}, {schema._MAX_NUMBER}" in source
    assert 1 <= schema.READS_FROM <= schema.NUMBER
    assert 1 <= schema.WORKS_BESIDE <= schema.NUMBER
