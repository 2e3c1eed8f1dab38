"""Tests of the script `touch`, which reads one job and records that its client polled it."""

import pytest
import redis

from shared.jobs.states import JobState
from shared.store import keys
from shared.store.clients.quick_client import execute_together
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    contents,
    heartbeat,
    view_of,
)


def test_a_job_can_be_read_in_every_state(store):
    heartbeat(store)
    job_id = admitted(store, a_job(metadata={"a": "b"}))
    view = store.touch(job_id)
    assert (view.state, view.tenant, view.metadata, view.text, view.usage) == (
        JobState.QUEUED,
        "blue",
        {"a": "b"},
        None,
        None,
    )
    held = claim_one(store).held
    view = store.touch(job_id)
    assert (view.state, view.model, view.position) == (JobState.RUNNING, MODEL, None)
    store.settle(an_ending(held), "w1")
    view = store.touch(job_id)
    assert (view.state, view.text) == (JobState.SUCCEEDED, "some words")
    assert view.ended_ms <= view.now_ms


def test_a_job_that_has_ended_is_read_as_touch_reads_it(store):
    heartbeat(store)
    canceled = admitted(store, a_job())
    store.cancel(canceled)
    admitted(store, a_job(metadata={"a": "b"}))
    succeeded = claim_one(store).held
    store.settle(an_ending(succeeded), "w1")
    for job_id in (canceled, succeeded.id):
        assert store.ended(job_id, tenant="blue") == store.touch(job_id) is not None


def test_a_job_that_has_not_ended_or_is_another_tenants_is_not_read_as_ended(store):
    heartbeat(store)
    queued, running = admitted(store, a_job()), admitted(store, a_job("green"))
    assert store.ended(queued, tenant="blue") is None
    store.cancel(queued)
    claim_one(store)
    assert store.ended(running, tenant="green") is None
    assert store.ended(queued, tenant="green") is None
    assert store.ended("never-was", tenant="blue") is None


def test_a_record_or_result_that_another_program_replaced_is_not_read_as_ended(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    store.client.delete(keys.result(held.id))
    store.client.lpush(keys.result(held.id), "x")
    assert store.ended(held.id, tenant="blue") == store.touch(held.id)
    assert store.ended(held.id, tenant="blue").text is None
    store.client.delete(keys.rq_job(held.id), keys.result(held.id))
    store.client.lpush(keys.rq_job(held.id), "x")
    assert store.ended(held.id, tenant="blue") is None
    store.client.delete(keys.rq_job(held.id))


def test_a_touch_of_an_unknown_job_returns_none(store):
    assert store.touch("never-was") is None


@pytest.mark.parametrize("quiet", [True, False])
def test_a_touch_of_another_tenants_job_returns_none_and_changes_nothing(store, quiet):
    heartbeat(store)
    job_id = admitted(store, a_job("green", poll_grace_ms=1_000))
    before = contents(store)
    assert store.touch(job_id, tenant="blue", quiet=quiet) is None
    assert contents(store) == before
    assert store.touch(job_id, tenant="green").id == job_id


def test_a_poll_postpones_the_abandonment_and_a_quiet_read_does_not(store):
    heartbeat(store)
    polled, looked_at = (admitted(store, a_job(poll_grace_ms=3_000)) for _ in range(2))
    advance_clock(store, 2_000)
    store.touch(polled)
    store.touch(looked_at, quiet=True)
    advance_clock(store, 1_500)
    assert store.reap().canceled == 1
    assert [store.touch(job_id).state for job_id in (polled, looked_at)] == [JobState.QUEUED, JobState.CANCELED]


def test_a_poll_of_an_ended_job_writes_nothing(store):
    heartbeat(store)
    job_id = admitted(store, a_job(poll_grace_ms=3_000))
    store.cancel(job_id)
    store.touch(job_id)
    assert store.client.exists(keys.polls()) == 0


@pytest.mark.parametrize("damage", ["wrong type", "no penstock fields", "unknown state", "not numbers"])
def test_a_corrupt_record_reads_as_no_job_or_as_a_job_with_default_values(store, damage):
    record = keys.rq_job("spoiled")
    if damage == "wrong type":
        store.client.set(record, "x", ex=60)
    else:
        fields = {"status": "queued"}
        if damage != "no penstock fields":
            fields |= {"penstock_tenant": "blue", "penstock_slug": MODEL, "penstock_state": "resting"}
        if damage == "not numbers":
            fields |= {"penstock_state": "failed", "penstock_admitted_ms": "soon", "penstock_ended_ms": "later"}
        store.client.hset(record, mapping=fields)
        store.client.expire(record, 60)
    view = store.touch("spoiled")
    if damage != "not numbers":
        assert view is None
    else:
        assert (view.state, view.admitted_ms, view.ended_ms) == (JobState.FAILED, 0, None)


@pytest.mark.parametrize("result", [b"not json", b"[1]", b"\xff", "another type", b'{"usage": {"unknown": 1}}'])
def test_a_job_with_a_corrupt_result_reads_as_a_job_without_text(store, result):
    heartbeat(store)
    job_id = admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held), "w1")
    key = keys.result(job_id)
    if result == "another type":
        store.client.delete(key)
        store.client.sadd(key, "x")
    else:
        store.client.set(key, result)
    store.client.expire(key, 60)
    view = store.touch(job_id)
    assert (view.state, view.text, view.usage) == (JobState.SUCCEEDED, None, None)


def test_touch_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    job_id = admitted(store, a_job(poll_grace_ms=3_000))
    before = store.client.zscore(keys.polls(), job_id)
    advance_clock(store, 1_000)
    with memory_is_full():
        assert store.touch(job_id).state is JobState.QUEUED
    assert store.client.zscore(keys.polls(), job_id) >= before + 1_000


def test_a_tenants_jobs_are_listed_newest_first_and_page_by_page(store):
    heartbeat(store)
    ids = []
    for _ in range(5):
        ids.append(admitted(store, a_job()))
        advance_clock(store, 1)
    admitted(store, a_job("green"))
    newest_first = ids[::-1]
    first = store.jobs("blue", limit=2)
    second = store.jobs("blue", limit=2, cursor=first.cursor)
    third = store.jobs("blue", limit=2, cursor=second.cursor)
    assert [[view.id for view in page.jobs] for page in (first, second, third)] == [
        newest_first[:2],
        newest_first[2:4],
        newest_first[4:],
    ]
    assert third.cursor is None
    assert store.jobs("blue", cursor="never-was").jobs == []
    store.cancel(ids[2])
    assert [view.id for view in store.jobs("blue", status="canceled").jobs] == [ids[2]]


def test_one_corrupt_record_does_not_hide_the_other_jobs(store):
    heartbeat(store)
    bad, good = admitted(store, a_job()), admitted(store, a_job())
    store.cancel(bad)
    store.client.hset(keys.rq_job(bad), "penstock_ended_ms", "later")
    assert {view.id for view in store.jobs("blue").jobs} == {bad, good}


def test_a_queued_job_shows_how_many_tokens_are_ahead_of_it(store):
    store.renew(a_heartbeat(), [])
    ids = [admitted(store, a_job()) for _ in range(3)]
    assert [view_of(store, job_id).ahead_tokens for job_id in ids] == [0, 30, 60]
    claim_one(store)
    assert [view_of(store, job_id).ahead_tokens for job_id in ids] == [None, 0, 30]


def test_commands_that_are_sent_together_have_their_replies_in_order_and_leave_a_usable_connection(store):
    store.client.set("spoiled", "x")
    first, error, last = execute_together(store.client, ("PING",), ("LLEN", "spoiled"), ("ECHO", "a"))
    assert (first, last) == (b"PONG", b"a")
    assert isinstance(error, redis.ResponseError)
    assert execute_together(store.client, ("GET", "spoiled")) == [b"x"]
    store.client.delete("spoiled")
