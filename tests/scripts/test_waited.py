"""Why a job waited: for its own tenant's jobs, for its turn, or again after a lapse; the parts sum to the wait."""

from shared.jobs.job import Waited
from tests.support.builders import MODEL, a_beat, a_job, admitted, an_ending, beat, claim_one, seen, shift


def test_the_parts_of_a_wait_sum_to_it(store):
    store.renew(a_beat(), [])
    first, second = admitted(store, a_job()), admitted(store, a_job())
    shift(store, 1_000)
    beat(store)
    held = claim_one(store)
    assert held.id == first
    shift(store, 500)
    beat(store, "w1", held.held)
    store.settle(an_ending(held.held), "w1")
    again = claim_one(store)
    assert again.id == second
    waited = seen(store, second).waited
    assert 1_000 <= waited.own_ms < 1_100
    assert 500 <= waited.turn_ms < 600
    view = seen(store, second)
    assert view.first_claim_ms is not None
    assert waited.own_ms + waited.turn_ms == view.first_claim_ms - view.admitted_ms


def test_a_wait_after_a_release_is_told_apart(store):
    store.renew(a_beat(), [])
    admitted(store, a_job())
    held = claim_one(store)
    store.release("w1", [held.held])
    shift(store, 700)
    beat(store)
    (again,) = store.claim("w1", "another", MODEL, room=1, cells_free=4_096)
    waited = seen(store, again.id).waited
    assert 700 <= waited.requeued_ms < 800
    assert waited.turn_ms < 100


def test_a_waiting_jobs_parts_grow_with_time(store):
    store.renew(a_beat(), [])
    job_id = admitted(store, a_job())
    waited = seen(store, job_id).waited
    assert waited == Waited(0, waited.turn_ms, 0)
    shift(store, 2_000)
    assert seen(store, job_id).waited.turn_ms >= 2_000
