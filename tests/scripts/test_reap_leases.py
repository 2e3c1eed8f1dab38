"""reap takes back what no lease holds; after a gap of everybody's beats it waits for them."""

from shared.jobs.states import JobState
from shared.store import keys
from shared.store.keys import queue_name
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    beat,
    claim,
    claim_one,
    pass_time,
    reconfigure,
    seen,
    shift,
    stat,
)

QUEUE = queue_name("blue", MODEL)


def test_a_lapsed_job_goes_back_to_its_old_place_in_the_order(store):
    beat(store)
    ids = [admitted(store, a_job(latest_start_ms=ms)) for ms in (10_000, 20_000, 30_000)]
    claim(store, room=2)
    pass_time(store, 16_500)
    answer = store.reap()
    assert (answer.requeued, answer.moved) == (2, 2)
    assert [raw.decode() for raw in store.client.zrange(keys.order(QUEUE), 0, -1)] == ids
    assert [raw.decode() for raw in store.client.lrange(f"rq:queue:{QUEUE}", 0, -1)] == ids
    assert stat(store, "reclaimed") == 2
    assert store.client.hget(keys.tenant("blue"), "service_mwt") == b"0"
    again = claim(store, room=3)
    assert [(job.id, job.attempt) for job in again] == list(zip(ids, (2, 2, 1), strict=True))


def test_a_job_that_used_up_its_attempts_is_failed_as_poison(store):
    beat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000))
    for attempt in (1, 2, 3):
        assert claim_one(store).attempt == attempt
        pass_time(store, 16_500)
        answer = store.reap()
        assert (answer.requeued, answer.failed) == ((1, 0) if attempt < 3 else (0, 1))
    view = seen(store, job_id)
    assert (view.state, view.code, view.attempts) == (JobState.FAILED, "poison", 3)


def test_with_one_attempt_the_first_lapse_is_the_last(store, settings):
    reconfigure(store, settings, max_attempts=1)
    beat(store)
    for _ in range(2):
        admitted(store, a_job())
    assert len(claim(store, room=2)) == 2
    pass_time(store, 16_500)
    assert store.reap().failed == 2


def test_a_lapsed_job_that_was_canceled_ends_canceled(store):
    beat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    store.cancel(held.id)
    pass_time(store, 16_500)
    assert store.reap().canceled == 1
    assert (seen(store, held.id).state, seen(store, held.id).code) == (JobState.CANCELED, "canceled")


def test_a_lapsed_job_past_its_deadline_is_expired(store):
    beat(store)
    admitted(store, a_job(deadline_ms=10_000))
    held = claim_one(store).held
    pass_time(store, 16_500)
    assert store.reap().expired == 1
    assert (seen(store, held.id).state, seen(store, held.id).stage) == (JobState.EXPIRED, "decode")


def test_after_a_gap_of_beats_no_lease_is_reaped_for_one_lease(store):
    """The store or everybody was away; who comes back names what it holds, and keeps it."""
    beat(store)
    for _ in range(2):
        admitted(store, a_job(deadline_ms=600_000))
    kept, lost = claim(store, room=2)
    shift(store, 20_000)
    answer = store.reap()
    assert answer.moved == 0
    assert 14_000 < answer.due_in_ms <= 15_000
    shift(store, 10_000)
    assert beat(store, "w1", kept.held).lost == []
    assert store.reap().moved == 0
    pass_time(store, 4_500)
    beat(store, "w1", kept.held)
    pass_time(store, 1_000)
    assert store.reap().requeued == 1
    assert [seen(store, job.id).state for job in (kept, lost)] == [JobState.RUNNING, JobState.QUEUED]


def test_the_first_beat_after_a_gap_notes_it_too(store):
    """Whoever comes back first, worker or reaper, the others' leases are kept."""
    beat(store)
    admitted(store, a_job(deadline_ms=600_000))
    held = claim_one(store).held
    shift(store, 20_000)
    beat(store, "w2")
    assert store.reap().moved == 0
    assert beat(store, "w1", held).lost == []


def test_a_dead_workers_job_is_taken_back_although_the_others_always_beat_late(store):
    """Each of their beats comes 2.5 s after the one before it, a gap every time; two leases are enough."""
    beat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000))
    claim_one(store)
    for _ in range(12):
        shift(store, 2_500)
        store.reap()
        beat(store, "w2")
        store.reap()
    assert seen(store, job_id).state is JobState.QUEUED


def test_a_long_gap_right_after_another_is_held_for_too(store):
    beat(store)
    admitted(store, a_job(deadline_ms=600_000))
    held = claim_one(store).held
    for _ in range(3):
        shift(store, 20_000)
        assert store.reap().moved == 0
        assert beat(store, "w1", held).lost == []


def test_one_gap_is_held_for_once_and_not_for_ever(store):
    beat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000))
    claim_one(store)
    moved = 0
    for _ in range(40):
        shift(store, 1_000)
        moved += store.reap().moved
    assert moved == 1
    assert seen(store, job_id).state is JobState.QUEUED


def test_while_somebody_beats_a_dead_workers_jobs_do_not_wait_longer_than_a_lease(store):
    beat(store)
    admitted(store, a_job())
    claim_one(store)
    pass_time(store, 15_100)
    assert store.reap().requeued == 1
