"""Tests of why a job waited: for its own tenant's jobs, for its turn, or again after it was requeued."""

import pytest

from shared.jobs.job_history import WaitTimes
from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    heartbeat,
    hold_clock,
    view_of,
)


@pytest.fixture(autouse=True)
def held(store):
    """Hold the store's time."""
    hold_clock(store)


def test_the_parts_of_a_wait_add_up_to_the_whole_wait(store):
    store.renew(a_heartbeat(), [])
    first = admitted(store, a_job())
    advance_clock(store, 1)
    second = admitted(store, a_job())
    advance_clock(store, 1_000)
    heartbeat(store)
    held = claim_one(store)
    assert held.id == first
    advance_clock(store, 500)
    heartbeat(store, "w1", held.held)
    store.settle(an_ending(held.held), "w1")
    again = claim_one(store)
    assert again.id == second
    waited = view_of(store, second).waited
    assert (waited.own_ms, waited.turn_ms) == (1_000, 500)
    view = view_of(store, second)
    assert view.first_claim_ms is not None
    assert waited.own_ms + waited.turn_ms == view.first_claim_ms - view.admitted_ms


def test_a_wait_after_a_release_is_reported_separately(store):
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())
    held = claim_one(store)
    store.release("w1", [held.held])
    advance_clock(store, 700)
    heartbeat(store)
    (again,) = store.claim("w1", "another", MODEL, room=1, cells_free=4_096)
    waited = view_of(store, again.id).waited
    assert (waited.requeued_ms, waited.turn_ms) == (700, 0)


def test_a_job_that_is_back_in_its_queue_waits_until_its_next_claim_or_its_end(store):
    store.renew(a_heartbeat(), [])
    job_id = admitted(store, a_job())
    store.release("w1", [claim_one(store).held])
    advance_clock(store, 700)
    assert view_of(store, job_id).waited.requeued_ms == 700
    store.cancel(job_id)
    advance_clock(store, 900)
    assert view_of(store, job_id).waited.requeued_ms == 700


def test_the_time_in_which_a_job_was_paused_is_reported_with_a_pause_that_continues(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    assert view_of(store, job_id).waited.paused_ms == 0
    now_ms = view_of(store, job_id).now_ms
    paused = {"penstock_paused_ms": 300, "penstock_paused_since_ms": now_ms}
    store.client.hset(keys.rq_job(job_id), mapping=paused)
    advance_clock(store, 500)
    assert view_of(store, job_id).waited.paused_ms == 800


def test_the_parts_of_a_queued_jobs_wait_grow_with_time(store):
    store.renew(a_heartbeat(), [])
    job_id = admitted(store, a_job())
    waited = view_of(store, job_id).waited
    assert waited == WaitTimes(0, 0, 0, 0)
    advance_clock(store, 2_000)
    assert view_of(store, job_id).waited.turn_ms == 2_000
