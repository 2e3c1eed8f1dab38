"""Tests of jobs that wait by themselves: those that the server behind their worker has refused, or has failed on."""

import pytest

from shared.jobs.job import Deferral
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.replies import ClaimRequest
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    claim,
    claim_one,
    heartbeat,
    pass_time,
    view_of,
)

BUSY = Deferral(1_000, "the upstream answered 429: too many requests")


def give_back(store, job, deferral=BUSY, *, counts=False, worker="w1"):
    return store.release(worker, [job.held], counts_as_attempt=counts, deferrals={job.id: deferral})


def refuse(store, times: int) -> None:
    """Let the only job that can be claimed be refused this often."""
    for _ in range(times):
        job = claim_one(store)
        give_back(store, job)
        pass_time(store, 60_000, beating="w1")


@pytest.mark.parametrize("counts", [False, True])
def test_a_job_that_was_given_back_is_not_claimed_before_its_wait_is_over(store, counts):
    heartbeat(store)
    job_id = admitted(store, a_job())
    assert give_back(store, claim_one(store), Deferral(20_000), counts=counts) == 1
    assert claim(store) == []
    advance_clock(store, 15_000)
    assert claim(store, "w2") == []
    advance_clock(store, 5_000)
    assert claim_one(store, "w2").id == job_id
    assert view_of(store, job_id).attempts == 1 + counts


def test_while_a_job_waits_the_other_jobs_of_its_tenant_and_of_other_tenants_continue(store):
    heartbeat(store)
    refused, other = admitted(store, a_job(latest_start_ms=1_000)), admitted(store, a_job(latest_start_ms=2_000))
    job = claim_one(store)
    assert job.id == refused
    give_back(store, job)
    green = admitted(store, a_job("green"))
    assert {each.id for each in claim(store, room=8)} == {other, green}


def test_a_job_that_was_refused_twice_keeps_its_place_and_after_the_third_time_it_is_behind_later_ones(store):
    heartbeat(store)
    day = {"deadline_ms": 86_400_000}
    refused, second = admitted(store, a_job(latest_start_ms=1_000, **day)), admitted(store, a_job(**day))
    for place in (1, 1, 2):
        job = claim_one(store)
        assert job.id == refused
        give_back(store, job)
        assert view_of(store, refused).position == place
        pass_time(store, 60_000, beating="w1")
    later = admitted(store, a_job(**day))
    assert [claim_one(store).id for _ in range(3)] == [second, later, refused]


@pytest.mark.passing_time
@pytest.mark.parametrize(("priority", "other"), [(1, 0), (0, 0), (-1, -1)])
def test_a_job_with_any_priority_is_moved_behind_those_of_its_priority(store, priority, other):
    heartbeat(store)
    day = {"deadline_ms": 86_400_000}
    refused = admitted(store, a_job(latest_start_ms=1_000, priority=priority, **day))
    refuse(store, 3)
    others = [admitted(store, a_job(priority=each, **day)) for each in (priority, other)]
    # A priority still counts: the jobs of a lower one come after the job that was refused.
    order = [others[0], refused, others[1]] if other < priority else [*others, refused]
    assert [claim_one(store).id for _ in range(3)] == order


def test_the_wait_doubles_from_the_fourth_refusal_on_up_to_a_minute(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=86_400_000))
    waits = []
    for _ in range(11):
        give_back(store, claim_one(store))
        until_ms = int(store.client.hget(keys.rq_job(job_id), "penstock_wait_until_ms"))
        waits.append(until_ms - view_of(store, job_id).now_ms)
        pass_time(store, 60_000, beating="w1")
    expected = [1, 1, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(0 <= 1_000 * s - wait < 50 for s, wait in zip(expected, waits, strict=True)), waits


def test_a_hint_of_an_hour_keeps_a_job_from_its_claim_for_a_minute(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=86_400_000))
    give_back(store, claim_one(store), Deferral(3_600_000, "the upstream answered 429"))
    pass_time(store, 60_000, beating="w1")
    assert claim_one(store).attempt == 1


@pytest.mark.parametrize("way", ["reap", "claim", "start deadline"])
def test_a_refused_job_whose_time_is_over_fails_with_the_reason(store, way):
    heartbeat(store)
    limits = {"start_within_ms": 20_000} if way == "start deadline" else {}
    job_id = admitted(store, a_job(deadline_ms=20_000 if not limits else 600_000, **limits))
    give_back(store, claim_one(store), Deferral(60_000, BUSY.refusal))
    pass_time(store, 20_000, beating="w1")
    if way == "claim":
        assert claim(store) == []
    else:
        moved = store.reap()
        assert (moved.failed, moved.expired) == (1, 0)
    view = view_of(store, job_id)
    assert (view.state, view.code, view.message) == (JobState.FAILED, "upstream_busy", BUSY.refusal)
    assert view.usage is not None
    assert view.usage.prompt_tokens == 0


def test_a_job_that_is_refused_after_its_deadline_fails_with_the_reason(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=1_000))
    job = claim_one(store)
    advance_clock(store, 1_100)
    assert give_back(store, job) == 0
    assert (view_of(store, job_id).state, view_of(store, job_id).message) == (JobState.FAILED, BUSY.refusal)


def test_a_job_that_is_refused_for_the_thirtieth_time_fails_with_the_reason(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=86_400_000))
    refuse(store, 29)
    assert view_of(store, job_id).state is JobState.QUEUED
    assert give_back(store, claim_one(store)) == 0
    view = view_of(store, job_id)
    assert (view.state, view.code, view.message) == (JobState.FAILED, "upstream_busy", BUSY.refusal)


def test_a_canceled_job_ends_as_canceled_even_if_it_is_refused(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    job = claim_one(store)
    store.cancel(job_id)
    assert give_back(store, job) == 0
    assert view_of(store, job_id).state is JobState.CANCELED


def test_a_job_that_was_refused_and_then_waits_for_a_worker_expires_without_a_reason(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=200_000))
    refuse(store, 1)
    store.release("w1", [claim_one(store).held])
    pass_time(store, 200_000, beating="w1")
    assert store.reap().expired == 1
    assert view_of(store, job_id).code == "deadline_exceeded"


def test_the_charge_of_a_refused_job_is_refunded_and_its_attempt_is_not_counted(store):
    heartbeat(store)
    job_id = admitted(store, a_job(deadline_ms=86_400_000))
    refuse(store, 5)
    assert view_of(store, job_id).attempts == 0
    assert store.client.hget(keys.tenant("blue"), keys.service_field(MODEL)) == b"0"


def test_a_sweep_leaves_a_job_that_was_moved_behind_where_it_is(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=86_400_000))
    refuse(store, 3)
    before = store.client.zrange(keys.order(f"blue.{MODEL}"), 0, -1, withscores=True)
    store.sweep("inflight", 0)
    assert store.client.zrange(keys.order(f"blue.{MODEL}"), 0, -1, withscores=True) == before


# Requests of a worker in a claim.


def test_a_tenant_that_is_set_aside_is_passed_and_the_others_continue(store):
    heartbeat(store)
    admitted(store, a_job("blue"))
    green = admitted(store, a_job("green"))
    blue2 = admitted(store, a_job("blue-2"))
    started = store.contend("w1", ClaimRequest("c1", MODEL, room=8, cells_free=4_096, aside=["blue"])).started
    assert {job.id for job in started} == {green, blue2}
    assert len(store.contend("w1", ClaimRequest("c2", MODEL, room=8, cells_free=4_096, aside=["green"])).started) == 1


@pytest.mark.parametrize("trusts", [False, True])
def test_jobs_on_their_last_attempt_run_one_at_a_time_unless_the_worker_trusts_them(store, settings, trusts):
    heartbeat(store)
    for _ in range(3):
        admitted(store, a_job(deadline_ms=600_000))
    for _ in range(2):
        for job in claim(store, room=3):
            give_back(store, job, Deferral(), counts=True)
    started = store.contend(
        "w1", ClaimRequest("c1", MODEL, room=3, cells_free=4_096, trusts_last_attempts=trusts)
    ).started
    assert [job.attempt for job in started] == [3] * (3 if trusts else 1)
