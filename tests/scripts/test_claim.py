"""Tests of the script `claim`: it leases the next jobs, ends late jobs at a queue's head and claims no job twice."""

import pytest

from shared.jobs.job import new_job_id
from shared.jobs.outcomes import Outcome
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.keys import queue_name
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    claim_one,
    heartbeat,
    pass_time,
    reconfigure,
    stat,
    view_of,
)

QUEUE = queue_name("blue", MODEL)


def test_a_claim_leases_the_job_and_returns_all_its_fields(store):
    heartbeat(store)
    job = a_job(deadline_ms=30_000, start_within_ms=20_000, traceparent="00-a")
    admitted(store, job)
    advance_clock(store, 1_000)
    held = claim_one(store)
    assert (held.id, held.tenant, held.model, held.payload) == (job.id, "blue", MODEL, job.payload)
    assert (held.attempt, held.prompt_tokens, held.max_tokens) == (1, 10, 20)
    assert (held.cancel_requested, held.traceparent) == (False, "00-a")
    assert 28_000 < held.deadline_in_ms <= 29_000
    assert held.start_in_ms is not None
    assert 18_000 < held.start_in_ms <= 19_000
    view = view_of(store, job.id)
    assert (view.state, view.worker, view.attempts, view.position) == (JobState.RUNNING, "w1", 1, None)
    assert view.started_ms == view.first_claim_ms
    assert store.client.zscore(keys.leases(), job.id) == view.started_ms + 15_000


def test_a_claim_without_queued_jobs_returns_nothing(store):
    heartbeat(store)
    assert claim(store, room=8) == []


def test_a_claim_takes_no_more_jobs_than_it_asks_for(store):
    heartbeat(store)
    for _ in range(5):
        admitted(store, a_job())
    assert len(claim(store, room=3)) == 3
    assert claim(store, room=0) == []
    assert len(claim(store, room=9)) == 2


def test_a_claim_takes_only_jobs_of_its_model(store):
    heartbeat(store)
    heartbeat(store, "w2", model="n")
    other = admitted(store, a_job(model="n"))
    assert claim(store) == []
    assert [job.id for job in store.claim("w2", new_job_id(), "n", room=1, cells_free=4_096)] == [other]


def test_jobs_of_a_model_with_a_slash_in_its_name_can_be_claimed(store):
    heartbeat(store, model="org/name:Q4")
    job_id = admitted(store, a_job(model="org/name:Q4"))
    (job,) = store.claim("w1", new_job_id(), "org/name:Q4", room=1, cells_free=4_096)
    assert (job.id, job.model) == (job_id, "org/name:Q4")


def test_a_repeated_claim_returns_the_same_jobs_and_no_new_ones(store):
    heartbeat(store)
    for _ in range(3):
        admitted(store, a_job())
    first = store.claim("w1", "c1", MODEL, room=2, cells_free=4_096)
    again = store.claim("w1", "c1", MODEL, room=2, cells_free=4_096)
    assert [job.id for job in again] == [job.id for job in first]
    assert [job.attempt for job in again] == [1, 1]
    assert stat(store, "executed") == 2


def test_a_repeated_claim_leaves_out_jobs_that_it_no_longer_holds(store):
    heartbeat(store)
    for _ in range(3):
        admitted(store, a_job())
    first, second, third = store.claim("w1", "c1", MODEL, room=3, cells_free=4_096)
    store.settle(an_ending(first.held), "w1")
    store.release("w1", [second.held])
    assert [job.id for job in store.claim("w1", "c1", MODEL, room=3, cells_free=4_096)] == [third.id]


def test_a_repeated_claim_reports_a_job_that_was_canceled_in_the_meantime(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    store.cancel(job_id)
    (again,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    assert again.cancel_requested


def test_two_workers_never_hold_the_same_job(store):
    heartbeat(store)
    heartbeat(store, "w2")
    ids = {admitted(store, a_job()) for _ in range(4)}
    one, two = claim(store, "w1", room=3), claim(store, "w2", room=3)
    assert {job.id for job in one} | {job.id for job in two} == ids
    assert len(one) + len(two) == 4


def test_a_repeated_claim_reports_no_time_left_after_the_start_deadline(store):
    heartbeat(store)
    admitted(store, a_job(start_within_ms=500))
    (first,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    assert first.start_in_ms > 0
    advance_clock(store, 5_000)
    (again,) = store.claim("w1", "c1", MODEL, room=1, cells_free=4_096)
    assert again.start_in_ms == 0


@pytest.mark.passing_time
def test_a_claim_ends_a_head_past_its_start_deadline_and_does_not_claim_it(store):
    heartbeat(store)
    late, alive = admitted(store, a_job(start_within_ms=500)), admitted(store, a_job(start_within_ms=5_000))
    advance_clock(store, 600)
    assert claim_one(store).id == alive
    view = view_of(store, late)
    assert (view.state, view.code, view.stage, view.attempts) == (JobState.EXPIRED, "deadline_exceeded", "queue", 0)


def test_a_claim_ends_heads_past_their_deadline_and_does_not_claim_them(store):
    heartbeat(store)
    late = [admitted(store, a_job(deadline_ms=500)) for _ in range(3)]
    alive = admitted(store, a_job())
    advance_clock(store, 600)
    assert claim_one(store).id == alive
    for job_id in late:
        view = view_of(store, job_id)
        assert (view.state, view.code, view.stage, view.attempts) == (
            JobState.EXPIRED,
            "deadline_exceeded",
            "queue",
            0,
        )
    assert stat(store, "executed") == 1


def test_a_claim_examines_at_most_sixty_four_entries(store, settings):
    reconfigure(store, settings, max_queue_size=200, max_inflight=200)
    heartbeat(store)
    for _ in range(70):
        admitted(store, a_job(deadline_ms=500))
    alive = admitted(store, a_job())
    advance_clock(store, 600)
    assert claim(store) == []
    assert stat(store, "ended|expired") == 64
    assert claim_one(store).id == alive


def test_a_job_that_needs_more_cells_than_are_free_is_skipped_for_the_next_tenant(store):
    heartbeat(store, cells=100)
    big = admitted(store, a_job("a", prompt_tokens=50, max_tokens=30))
    small = admitted(store, a_job("b", prompt_tokens=5, max_tokens=5))
    assert claim_one(store, cells_free=40).id == small
    assert claim_one(store, cells_free=100).id == big


def test_the_cells_of_a_claimed_job_are_not_free_for_the_rest_of_the_claim(store):
    heartbeat(store, cells=100)
    first = admitted(store, a_job("a", prompt_tokens=30, max_tokens=30))
    admitted(store, a_job("b", prompt_tokens=30, max_tokens=30))
    assert [job.id for job in claim(store, room=2, cells_free=100)] == [first]


@pytest.mark.passing_time
def test_a_job_skipped_eight_times_keeps_the_slot_empty_until_it_fits(store):
    heartbeat(store, cells=100)
    big = admitted(store, a_job("a", prompt_tokens=50, max_tokens=30, cost_mwt=1))
    small = [admitted(store, a_job("b", prompt_tokens=5, max_tokens=5)) for _ in range(9)]
    taken = [claim_one(store, cells_free=40).id for _ in range(8)]
    assert taken == small[:8]
    assert claim(store, cells_free=40) == []
    assert [job.id for job in claim(store, room=2, cells_free=100)] == [big, small[8]]


def test_a_job_larger_than_the_whole_cache_is_claimed_when_all_cells_are_free(store):
    """The engine counts the true tokens and fails a job that cannot fit; such a job must not wait forever."""
    heartbeat(store, cells=100)
    job_id = admitted(store, a_job(prompt_tokens=500, max_tokens=500))
    assert claim(store, cells_free=99) == []
    assert claim_one(store, cells_free=100).id == job_id


def lose_all_but_the_last_attempt(store, *ids):
    """Let each of the jobs `ids` lose two workers that run no other, so that one of its three attempts is left."""
    for _ in range(2):
        for number in range(len(ids)):
            claim(store, f"dead{number}")
        pass_time(store, 16_500)
        assert store.reap().requeued == len(ids)
    heartbeat(store)


def test_two_jobs_on_their_last_attempt_never_run_on_one_worker_at_once(store):
    heartbeat(store)
    first, second = admitted(store, a_job("a")), admitted(store, a_job("b"))
    lose_all_but_the_last_attempt(store, first, second)
    innocent = admitted(store, a_job("c"))
    taken = {job.id for job in claim(store, room=3)}
    left = {first, second} - taken
    assert len(taken) == 2
    assert innocent in taken
    assert claim(store, room=3) == []
    heartbeat(store, "w2")
    assert {claim_one(store, "w2").id} == left


def test_a_worker_may_claim_another_last_attempt_after_it_settled_the_one_before(store):
    heartbeat(store)
    first, second = admitted(store, a_job("a")), admitted(store, a_job("b"))
    lose_all_but_the_last_attempt(store, first, second)
    held = claim_one(store, room=2)
    assert claim(store, room=2) == []
    store.settle(an_ending(held.held), "w1")
    assert {held.id, claim_one(store).id} == {first, second}


@pytest.mark.parametrize("payload", [b"not json", b'"text"', b"[1]", b"\xff\xfe", None])
def test_a_corrupt_payload_is_claimed_as_an_empty_payload(store, payload):
    heartbeat(store)
    job_id = admitted(store, a_job())
    if payload is None:
        store.client.delete(keys.payload(job_id))
    else:
        store.client.set(keys.payload(job_id), payload)
    assert claim_one(store).payload == {}


@pytest.mark.parametrize("family", ["payload", "events", "result", "rq_results"])
def test_a_key_of_the_wrong_type_loses_only_its_own_content(store, family):
    heartbeat(store)
    first, second = admitted(store, a_job("a")), admitted(store, a_job("b"))
    key = keys.TABLE[family](first)
    store.client.delete(key)
    store.client.sadd(key, "foreign")
    held = claim(store, room=2)
    assert [job.id for job in held] == [first, second]
    for job in held:
        assert store.settle(an_ending(job.held), "w1").outcome is Outcome.SUCCEEDED
    assert view_of(store, first).state is JobState.SUCCEEDED


@pytest.mark.parametrize("damage", ["deleted", "wrong type", "empty"])
def test_a_job_with_a_damaged_record_is_forgotten_and_blocks_no_other_job(store, damage):
    heartbeat(store)
    ghost, alive = admitted(store, a_job(deadline_ms=50_000)), admitted(store, a_job())
    record = keys.rq_job(ghost)
    store.client.delete(record)
    if damage == "wrong type":
        store.client.set(record, "x")
    if damage == "empty":
        store.client.hset(record, "meta", "{}")
    assert claim_one(store).id == alive
    assert store.snapshot().inflight == 1
    assert store.client.exists(record, keys.payload(ghost)) == 0
    assert stat(store, "ended|forgotten") == 1
    # The record said what was reserved for the job in its tenant's budget, so only a recount can give that back.
    store.reconcile("blue", MODEL)


def test_a_claim_writes_a_started_event_to_a_stream_with_a_ttl(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=60_000))
    claim_one(store)
    ((_, event),) = store.read_events({job_id: "0"}, block_ms=100)[job_id]
    assert event == {"type": "started", "attempt": "1"}
    assert 60_000 < store.client.pttl(keys.events(job_id)) <= 60_000 + 2 * 15_000


def test_the_executed_counter_counts_a_job_once_however_often_it_is_claimed(store):
    heartbeat(store)
    admitted(store, a_job())
    store.release("w1", [claim_one(store).held])
    claim_one(store)
    assert stat(store, "executed") == 1
    assert stat(store, f"h|queue_wait|blue|{MODEL}|sum_us") >= 0


def test_claim_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    job_id = admitted(store, a_job())
    with memory_is_full():
        held = claim_one(store)
        assert held.id == job_id
        assert store.settle(an_ending(held.held), "w1").outcome is Outcome.SUCCEEDED
