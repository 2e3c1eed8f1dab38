"""release: a draining worker gives jobs back unharmed, and the attempt does not count."""

import pytest

from shared.jobs.job import Held
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.keys import queue_name
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    beat,
    claim,
    claim_one,
    contents,
    reconfigure,
    seen,
    shift,
    stat,
)

QUEUE = queue_name("blue", MODEL)


def test_a_released_job_waits_again_at_its_old_place_with_its_old_deadline(store):
    beat(store)
    first, second, third = (admitted(store, a_job(latest_start_ms=ms)) for ms in (10_000, 20_000, 30_000))
    before = seen(store, second)
    one, two = claim(store, room=2)
    assert (one.id, two.id) == (first, second)
    assert store.release("w1", [two.held]) == 1
    assert [raw.decode() for raw in store.client.lrange(f"rq:queue:{QUEUE}", 0, -1)] == [second, third]
    view = seen(store, second)
    assert (view.state, view.position, view.attempts, view.worker) == (JobState.QUEUED, 1, 0, "")
    assert (view.admitted_ms, view.deadline_at_ms) == (before.admitted_ms, before.deadline_at_ms)
    assert view.started_ms is None
    assert view.first_claim_ms is not None


def test_a_release_gives_the_charge_back_and_does_not_count_the_attempt(store):
    beat(store)
    admitted(store, a_job())
    for _ in range(5):
        held = claim_one(store)
        assert held.attempt == 1
        assert store.release("w1", [held.held]) == 1
        assert store.client.hget(keys.tenant("blue"), "service_mwt") == b"0"
    assert stat(store, "requeued") == 5


def test_a_job_that_had_begun_to_answer_is_wanted_until_its_deadline_again(store):
    """Its first token came in time: that another worker tells it anew much later takes nothing from that."""
    beat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000, start_within_ms=30_000))
    held = claim_one(store).held
    store.append([(held, "Once", 1)])
    shift(store, 60_000)
    beat(store, "w1", held)
    store.release("w1", [held])
    assert store.reap().moved == 0
    assert claim_one(store).start_in_ms is None
    assert seen(store, job_id).state is JobState.RUNNING


def test_a_job_that_had_not_begun_is_not_wanted_after_its_first_token_was_due(store):
    beat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000, start_within_ms=30_000))
    held = claim_one(store).held
    shift(store, 60_000)
    beat(store, "w1", held)
    store.release("w1", [held])
    assert store.reap().expired == 1
    assert (seen(store, job_id).state, seen(store, job_id).attempts) == (JobState.EXPIRED, 0)


def test_a_requeued_job_is_never_refused_by_a_bound(store, settings):
    reconfigure(store, settings, max_queue_size=1, max_inflight=2)
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    admitted(store, a_job())
    assert store.release("w1", [held]) == 1
    assert store.snapshot().waiting == 2


def test_a_second_release_changes_nothing(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.release("w1", [held])
    before = contents(store)
    assert store.release("w1", [held]) == 0
    assert contents(store) == before


@pytest.mark.parametrize("stranger", ["another token", "another worker", "an ended job", "no job"])
def test_only_the_holder_gives_back(store, stranger):
    beat(store)
    admitted(store, a_job())
    held, worker = claim_one(store).held, "w1"
    if stranger == "another token":
        held = Held(held.id, "stale")
    elif stranger == "another worker":
        worker = "w2"
    elif stranger == "an ended job":
        store.settle(an_ending(held), "w1")
    else:
        held = Held("never-was", held.token)
    before = contents(store)
    assert store.release(worker, [held]) == 0
    assert contents(store) == before


def test_a_canceled_job_is_ended_rather_than_given_back(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.cancel(held.id)
    assert store.release("w1", [held]) == 0
    assert seen(store, held.id).state is JobState.CANCELED


def test_a_late_job_is_ended_rather_than_given_back(store):
    beat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    shift(store, 1_100)
    assert store.release("w1", [held]) == 0
    assert (seen(store, held.id).state, seen(store, held.id).code) == (JobState.EXPIRED, "deadline_exceeded")


def test_a_release_wakes_the_pool_and_tells_followers(store):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.client.delete(keys.wake(MODEL))
    store.release("w1", [held])
    assert store.wait_for_work("w2", MODEL, timeout_s=1) == (True, [])
    *_, (_, last) = store.read_events({held.id: "0"}, block_ms=100)[held.id]
    assert last == {"type": "requeued"}


def test_releases_go_on_without_memory(store, memory_is_full):
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    with memory_is_full():
        assert store.release("w1", [held]) == 1
    assert claim_one(store, "w2").id == held.id
