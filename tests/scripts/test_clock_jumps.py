"""Tests that the queue keeps working when the clock of the store's machine jumps back or forward."""

import pytest

from shared.jobs.states import JobState
from shared.store import keys
from shared.store.decode import LIVE_MS
from tests.support.builders import (
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    claim,
    claim_one,
    heartbeat,
    view_of,
)
from tests.support.store_clock import EXACT_MS, HOUR_MS, MINUTE_MS

BACK = pytest.mark.parametrize("back_ms", [MINUTE_MS, HOUR_MS])


@BACK
def test_a_dead_workers_job_comes_back_when_its_lease_ends_although_the_clock_went_back(store, clock, back_ms):
    heartbeat(store, "other")
    heartbeat(store, "dead")
    job_id = admitted(store, a_job(deadline_ms=600_000))
    claim_one(store, "dead")
    clock.jump(-back_ms)
    took_ms = clock.waited_ms(lambda: view_of(store, job_id).state is JobState.QUEUED, at_most_ms=30_000)
    assert took_ms == pytest.approx(15_000, abs=EXACT_MS)
    assert claim_one(store, "other").id == job_id


@BACK
def test_a_deadline_of_20_s_passes_after_20_s_although_the_clock_went_back(store, clock, back_ms):
    heartbeat(store, "other")
    job_id = admitted(store, a_job(deadline_ms=20_000))
    clock.jump(-back_ms)
    took_ms = clock.waited_ms(lambda: view_of(store, job_id).state is JobState.EXPIRED, at_most_ms=30_000)
    assert took_ms == pytest.approx(20_000, abs=EXACT_MS)


@BACK
def test_a_worker_that_renews_keeps_its_job_when_the_clock_goes_back(store, clock, back_ms):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=600_000))
    held = claim_one(store)
    clock.jump(-back_ms)
    for _ in range(20):
        clock.set(1_000)
        assert heartbeat(store, "w1", held).lost == []
        store.reap()
    assert store.settle(an_ending(held), "w1").outcome == "succeeded"
    assert view_of(store, job_id).ended_ms >= view_of(store, job_id).started_ms


@BACK
def test_a_worker_that_fell_silent_before_the_clock_went_back_is_not_live_5_s_later(store, clock, back_ms):
    heartbeat(store, "silent")
    clock.jump(-back_ms)

    def is_dead():
        return not next(worker for worker in store.snapshot().workers if worker.name == "silent").live

    assert clock.waited_ms(is_dead, at_most_ms=10_000) == pytest.approx(LIVE_MS, abs=EXACT_MS)


def test_an_unpolled_job_is_abandoned_after_its_grace_although_the_clock_went_back(store, clock):
    heartbeat(store, "other")
    job_id = admitted(store, a_job(deadline_ms=600_000, poll_grace_ms=10_000))
    clock.jump(-HOUR_MS)
    took_ms = clock.waited_ms(lambda: view_of(store, job_id).state is JobState.CANCELED, at_most_ms=20_000)
    assert took_ms == pytest.approx(10_000, abs=EXACT_MS)


def test_a_pause_of_reaping_ends_after_one_lease_although_the_clock_went_back(store, clock):
    heartbeat(store, "dead")
    job_id = admitted(store, a_job(deadline_ms=600_000))
    claim_one(store, "dead")
    clock.set(20_000)  # a gap in all heartbeats, which starts the pause
    heartbeat(store, "other")
    assert store.reap().moved == 0
    clock.jump(-HOUR_MS)
    took_ms = clock.waited_ms(lambda: view_of(store, job_id).state is JobState.QUEUED, at_most_ms=30_000)
    assert took_ms == pytest.approx(15_000, abs=EXACT_MS)


def test_a_rate_limited_tenant_waits_as_long_as_its_hint_says_although_the_clock_went_back(store, clock):
    store.client.hset(keys.tenant("blue"), mapping={"policy": "1", "policy_rpm": "6"})
    store.client.zadd(keys.tenants(), {"blue": 1})
    heartbeat(store, "other")
    for _ in range(6):
        admitted(store, a_job(deadline_ms=600_000))
    assert store.admit(a_job()).reason == "rate_limited"
    clock.jump(-HOUR_MS)
    quote = {"prompt_tokens": 10, "max_tokens": 20, "deadline_ms": 60_000}
    took_ms = clock.waited_ms(lambda: store.quote(a_job(**quote)).refused is None, at_most_ms=30_000)
    assert took_ms == pytest.approx(10_000, abs=EXACT_MS)


def test_appointments_are_not_an_hour_away_after_the_clock_went_back(store, clock):
    rates = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
    store.renew(a_heartbeat(facts=rates), [])
    for _ in range(12):
        admitted(store, a_job("filler", cost_mwt=200_000, deadline_ms=600_000, max_tokens=20))
    first_ms = store.admit(a_job(deadline_ms=1)).retry_hint_ms
    clock.jump(-HOUR_MS)
    store.renew(a_heartbeat(facts=rates), [])
    assert store.admit(a_job(deadline_ms=1)).retry_hint_ms <= first_ms + 5_000


@BACK
def test_time_never_goes_back_and_passes_at_its_own_speed(store, clock, back_ms):
    heartbeat(store)
    before_ms = store.snapshot().now_ms
    clock.jump(-back_ms)
    seen = [store.snapshot().now_ms]
    for _ in range(40):
        clock.pass_ms(500)
        seen.append(store.snapshot().now_ms)
    assert [before_ms, *seen] == sorted([before_ms, *seen])
    assert seen[-1] - before_ms == pytest.approx(20_000, abs=EXACT_MS)


@pytest.mark.parametrize("jump_ms", [MINUTE_MS, HOUR_MS])
def test_after_a_jump_forward_and_its_correction_nothing_is_stuck(store, clock, jump_ms):
    heartbeat(store)
    late, early = (admitted(store, a_job(deadline_ms=ms)) for ms in (24 * HOUR_MS, 30_000))
    held = claim(store, room=2)
    clock.jump(jump_ms)
    for _ in range(2):
        store.renew(a_heartbeat(), held)
        store.reap()
    clock.jump(-jump_ms)
    heartbeat(store)
    took_ms = clock.waited_ms(lambda: view_of(store, late).state is JobState.QUEUED, at_most_ms=30_000, beating="w2")
    assert took_ms == pytest.approx(15_000, abs=EXACT_MS)
    assert view_of(store, early).state is JobState.EXPIRED
    again = claim_one(store, "w2")
    assert (again.id, again.attempt) == (late, 2)
    assert store.settle(an_ending(again), "w2").outcome == "succeeded"
