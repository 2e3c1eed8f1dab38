"""Tests of the script `release`: a worker gives jobs back unchanged, and the attempt counts only if it failed."""

import pytest

from shared.jobs.job import ClaimRef
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.keys import queue_name
from shared.store.replies import Rings
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
    reconfigure,
    stat,
    view_of,
)

QUEUE = queue_name("blue", MODEL)


def test_a_released_job_is_queued_again_at_its_old_position_with_its_old_deadline(store):
    heartbeat(store)
    first, second, third = (admitted(store, a_job(latest_start_ms=ms)) for ms in (10_000, 20_000, 30_000))
    before = view_of(store, second)
    one, two = claim(store, room=2)
    assert (one.id, two.id) == (first, second)
    assert store.release("w1", [two.held]) == 1
    assert [raw.decode() for raw in store.client.lrange(f"rq:queue:{QUEUE}", 0, -1)] == [second, third]
    view = view_of(store, second)
    assert (view.state, view.position, view.attempts, view.worker) == (JobState.QUEUED, 1, 0, "")
    assert (view.admitted_ms, view.deadline_at_ms) == (before.admitted_ms, before.deadline_at_ms)
    assert view.started_ms is None
    assert view.first_claim_ms is not None


def test_a_release_refunds_the_charge_and_does_not_count_the_attempt(store):
    heartbeat(store)
    admitted(store, a_job())
    for _ in range(5):
        held = claim_one(store)
        assert held.attempt == 1
        assert store.release("w1", [held.held]) == 1
        assert store.client.hget(keys.tenant("blue"), keys.service_field(MODEL)) == b"0"
    assert stat(store, "requeued") == 5


def test_a_released_job_that_had_sent_its_first_token_has_no_start_deadline_any_more(store):
    """Its first token came in time; another worker sends it again much later, and that does not matter."""
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000, start_within_ms=30_000))
    held = claim_one(store).held
    store.append([(held, "Once", 1)])
    advance_clock(store, 60_000)
    heartbeat(store, "w1", held)
    store.release("w1", [held])
    assert store.reap().moved == 0
    assert claim_one(store).start_in_ms is None
    assert view_of(store, job_id).state is JobState.RUNNING


def test_a_released_job_that_had_sent_no_token_expires_at_its_start_deadline(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000, start_within_ms=30_000))
    held = claim_one(store).held
    advance_clock(store, 60_000)
    heartbeat(store, "w1", held)
    store.release("w1", [held])
    assert store.reap().expired == 1
    assert (view_of(store, job_id).state, view_of(store, job_id).attempts) == (JobState.EXPIRED, 0)


def test_a_released_job_is_queued_again_even_beyond_the_bound(store, settings):
    reconfigure(store, settings, max_queue_size=1, max_inflight=2)
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    admitted(store, a_job())
    assert store.release("w1", [held]) == 1
    assert store.snapshot().waiting == 2


def test_a_failed_attempt_counts_and_the_charge_is_refunded(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    held = claim_one(store)
    assert store.release("w1", [held.held], counts_as_attempt=True) == 1
    assert store.client.hget(keys.tenant("blue"), keys.service_field(MODEL)) == b"0"
    assert view_of(store, job_id).attempts == 1
    assert claim_one(store, "w2").attempt == 2


def test_a_job_whose_last_attempt_failed_is_not_requeued(store, settings):
    reconfigure(store, settings, max_attempts=2)
    heartbeat(store)
    job_id = admitted(store, a_job())
    assert store.release("w1", [claim_one(store).held], counts_as_attempt=True) == 1
    last = claim_one(store).held
    assert store.release("w1", [last], counts_as_attempt=True) == 0
    view = view_of(store, job_id)
    assert (view.state, view.code, view.attempts) == (JobState.FAILED, "poison", 2)


@pytest.mark.parametrize("counts", [False, True])
def test_a_second_release_of_either_kind_changes_nothing(store, counts):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.release("w1", [held], counts_as_attempt=not counts)
    before = contents(store)
    assert store.release("w1", [held], counts_as_attempt=counts) == 0
    assert contents(store) == before


def test_a_second_release_changes_nothing(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.release("w1", [held])
    before = contents(store)
    assert store.release("w1", [held]) == 0
    assert contents(store) == before


@pytest.mark.parametrize("mismatch", ["another token", "another worker", "an ended job", "no job"])
def test_only_the_holder_of_its_lease_can_release_a_job(store, mismatch):
    heartbeat(store)
    admitted(store, a_job())
    held, worker = claim_one(store).held, "w1"
    if mismatch == "another token":
        held = ClaimRef(held.id, "stale")
    elif mismatch == "another worker":
        worker = "w2"
    elif mismatch == "an ended job":
        store.settle(an_ending(held), "w1")
    else:
        held = ClaimRef("never-was", held.token)
    before = contents(store)
    assert store.release(worker, [held]) == 0
    assert contents(store) == before


def test_a_canceled_job_ends_when_it_is_released(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.cancel(held.id)
    assert store.release("w1", [held]) == 0
    assert view_of(store, held.id).state is JobState.CANCELED


def test_a_job_past_its_deadline_ends_when_it_is_released(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    advance_clock(store, 1_100)
    assert store.release("w1", [held]) == 0
    assert (view_of(store, held.id).state, view_of(store, held.id).code) == (JobState.EXPIRED, "deadline_exceeded")


def test_a_release_rings_the_pools_doorbell_and_writes_a_requeued_event(store):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.client.delete(keys.wake(MODEL))
    store.release("w1", [held])
    assert store.wait_for_work("w2", MODEL, timeout_s=1) == Rings(pool=True)
    *_, (_, last) = store.read_events({held.id: "0"}, block_ms=100)[held.id]
    assert last == {"type": "requeued"}


def test_release_works_when_memory_is_full(store, memory_is_full):
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    with memory_is_full():
        assert store.release("w1", [held]) == 1
    assert claim_one(store, "w2").id == held.id
