"""Tests of how reap takes back jobs whose lease ended, and of how it waits after a gap in all workers' heartbeats."""

from shared.jobs.states import JobState
from shared.store import keys
from shared.store.keys import queue_name
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    claim,
    claim_one,
    heartbeat,
    pass_time,
    reconfigure,
    stat,
    view_of,
)

QUEUE = queue_name("blue", MODEL)


def test_a_job_whose_lease_ended_returns_to_its_old_position(store):
    heartbeat(store)
    ids = [admitted(store, a_job(latest_start_ms=ms)) for ms in (10_000, 20_000, 30_000)]
    claim(store, room=2)
    pass_time(store, 16_500)
    answer = store.reap()
    assert (answer.requeued, answer.moved) == (2, 2)
    assert [raw.decode() for raw in store.client.zrange(keys.order(QUEUE), 0, -1)] == ids
    assert [raw.decode() for raw in store.client.lrange(f"rq:queue:{QUEUE}", 0, -1)] == ids
    assert stat(store, "reclaimed") == 2
    assert store.client.hget(keys.tenant("blue"), keys.service_field(MODEL)) == b"0"
    again = claim(store, room=3)
    assert [(job.id, job.attempt) for job in again] == list(zip(ids, (2, 2, 1), strict=True))


def test_a_job_that_used_up_its_attempts_fails_as_poison(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000))
    for attempt in (1, 2, 3):
        assert claim_one(store).attempt == attempt
        pass_time(store, 16_500)
        answer = store.reap()
        assert (answer.requeued, answer.failed) == ((1, 0) if attempt < 3 else (0, 1))
    view = view_of(store, job_id)
    assert (view.state, view.code, view.attempts) == (JobState.FAILED, "poison", 3)


def test_with_one_attempt_allowed_the_first_lost_lease_fails_the_job(store, settings):
    reconfigure(store, settings, max_attempts=1)
    heartbeat(store)
    for _ in range(2):
        admitted(store, a_job())
    assert len(claim(store, room=2)) == 2
    pass_time(store, 16_500)
    assert store.reap().failed == 2


def test_a_canceled_job_whose_lease_ended_ends_canceled(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=1_000))
    held = claim_one(store).held
    store.cancel(held.id)
    pass_time(store, 16_500)
    assert store.reap().canceled == 1
    assert (view_of(store, held.id).state, view_of(store, held.id).code) == (JobState.CANCELED, "canceled")


def test_a_job_past_its_deadline_whose_lease_ended_is_expired(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=10_000))
    held = claim_one(store).held
    pass_time(store, 16_500)
    assert store.reap().expired == 1
    assert (view_of(store, held.id).state, view_of(store, held.id).stage) == (JobState.EXPIRED, "decode")


def test_after_a_gap_in_all_heartbeats_no_job_is_taken_back_for_one_lease(store):
    """The store or all workers were away; a worker that comes back names the jobs that it holds and keeps them."""
    heartbeat(store)
    for _ in range(2):
        admitted(store, a_job(deadline_ms=600_000))
    kept, lost = claim(store, room=2)
    advance_clock(store, 20_000)
    answer = store.reap()
    assert answer.moved == 0
    assert 14_000 < answer.due_in_ms <= 15_000
    advance_clock(store, 10_000)
    assert heartbeat(store, "w1", kept.held).lost == []
    assert store.reap().moved == 0
    pass_time(store, 4_500)
    heartbeat(store, "w1", kept.held)
    pass_time(store, 1_000)
    assert store.reap().requeued == 1
    assert [view_of(store, job.id).state for job in (kept, lost)] == [JobState.RUNNING, JobState.QUEUED]


def test_the_first_heartbeat_after_a_gap_protects_the_other_workers_leases(store):
    """Whether a worker or the reaper comes back first, the leases of the other workers are kept."""
    heartbeat(store)
    admitted(store, a_job(deadline_ms=600_000))
    held = claim_one(store).held
    advance_clock(store, 20_000)
    heartbeat(store, "w2")
    assert store.reap().moved == 0
    assert heartbeat(store, "w1", held).lost == []


def test_a_dead_workers_job_is_taken_back_although_all_other_heartbeats_come_late(store):
    """Each heartbeat comes 2.5 s after the one before it, which counts as a gap every time; two leases are enough."""
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000))
    claim_one(store)
    for _ in range(12):
        advance_clock(store, 2_500)
        store.reap()
        heartbeat(store, "w2")
        store.reap()
    assert view_of(store, job_id).state is JobState.QUEUED


def test_a_long_gap_right_after_another_protects_the_leases_again(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=600_000))
    held = claim_one(store).held
    for _ in range(3):
        advance_clock(store, 20_000)
        assert store.reap().moved == 0
        assert heartbeat(store, "w1", held).lost == []


def test_one_gap_protects_the_leases_only_once(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000))
    claim_one(store)
    moved = 0
    for _ in range(40):
        advance_clock(store, 1_000)
        moved += store.reap().moved
    assert moved == 1
    assert view_of(store, job_id).state is JobState.QUEUED


def test_a_dead_workers_job_is_requeued_after_one_lease_while_another_worker_sends_heartbeats(store):
    heartbeat(store)
    admitted(store, a_job())
    claim_one(store)
    pass_time(store, 15_100)
    assert store.reap().requeued == 1
