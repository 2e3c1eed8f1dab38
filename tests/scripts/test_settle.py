"""Tests of the script `settle`: the holder of the lease ends a job once; the store decides on cancel and deadline."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis

from shared.errors import StoreUnavailable
from shared.jobs.job import ClaimRef, Usage
from shared.jobs.outcomes import Outcome, Stage
from shared.jobs.states import JobState
from shared.store import keys, scripts
from shared.store.replies import ClaimRequest, SettleAnswer, Settled
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    contents,
    heartbeat,
    pass_time,
    reconfigure,
    stat,
    view_of,
)


@pytest.fixture
def held(store) -> ClaimRef:
    """A job that worker w1 runs and whose deadline is in one minute."""
    heartbeat(store)
    admitted(store, a_job(deadline_ms=60_000, payload={"prompt": "<secret>"}))
    return claim_one(store).held


def test_a_succeeded_job_keeps_its_text_usage_and_message(store, held):
    usage = Usage(11, 3, 20, prefill_ms=5, decode_ms=190, ttft_ms=7)
    ending = an_ending(held, text="Es war 𝄞 einmal", usage=usage, message="m", extra={"embeddings": [1.5]})
    assert store.settle(ending, "w1") == Settled(SettleAnswer.SETTLED, Outcome.SUCCEEDED)
    view = view_of(store, held.id)
    assert (view.state, view.finish_reason, view.code) == (JobState.SUCCEEDED, "stop", "")
    assert (view.text, view.usage, view.message) == ("Es war 𝄞 einmal", usage, "m")
    assert view.extra == {"embeddings": [1.5]}
    assert view.ended_ms is not None
    assert view.started_ms is not None
    assert view.ended_ms >= view.started_ms


@pytest.mark.parametrize(
    ("outcome", "code", "stage"),
    [
        (Outcome.FAILED, "engine_error", None),
        (Outcome.FAILED, "context_length_exceeded", None),
        (Outcome.EXPIRED, "deadline_exceeded", Stage.PREFILL),
        (Outcome.CANCELED, "canceled", None),
    ],
)
def test_any_other_outcome_is_stored_as_the_worker_reported_it(store, held, outcome, code, stage):
    answer = store.settle(an_ending(held, outcome, code=code, stage=stage, text="so far"), "w1")
    assert answer == Settled(SettleAnswer.SETTLED, outcome)
    view = view_of(store, held.id)
    assert (view.state, view.code, view.stage, view.text) == (outcome.value, code, stage or "", "so far")


def test_an_ended_job_is_not_inflight_and_its_payload_is_deleted(store, held):
    store.settle(an_ending(held), "w1")
    snapshot = store.snapshot()
    assert (snapshot.inflight, snapshot.waiting, snapshot.running) == (0, 0, 0)
    assert store.client.exists(keys.payload(held.id), keys.leases(), keys.inflight()) == 0
    for key in (keys.rq_job(held.id), keys.result(held.id), f"rq:results:{held.id}"):
        assert 0 < store.client.ttl(key) <= 3_600
    assert 0 < store.client.ttl(keys.events(held.id)) <= 60


def test_a_settle_writes_an_ended_event_for_followers(store, held):
    store.settle(an_ending(held), "w1")
    *_, (_, last) = store.read_events({held.id: "0"}, block_ms=100)[held.id]
    assert last == {"type": "ended", "outcome": "succeeded"}


def test_a_second_settle_returns_already_and_changes_nothing(store, held):
    store.settle(an_ending(held), "w1")
    before = contents(store)
    again = store.settle(an_ending(held, Outcome.FAILED, text="other"), "w1")
    assert again == Settled(SettleAnswer.ALREADY, Outcome.SUCCEEDED)
    assert contents(store) == before
    assert stat(store, "ended|succeeded") == 1
    assert stat(store, "ended|failed") == 0


def test_exactly_one_of_many_concurrent_settles_counts(store, held):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: store.settle(an_ending(held), "w1").answer, range(50)))
    assert answers.count(SettleAnswer.SETTLED) == 1
    assert answers.count(SettleAnswer.ALREADY) == 49
    assert stat(store, f"tokens|blue|{MODEL}|completion") == 20


def test_a_settle_with_an_old_claim_token_returns_lost_and_its_work_counts_as_wasted(store, held):
    pass_time(store, 16_500)
    store.reap()
    fresh = claim_one(store, "w2").held
    before = view_of(store, held.id)
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7)
    # A repeated report of the same work counts once.
    for _ in range(3):
        assert store.settle(an_ending(held, usage=usage), "w1") == Settled(SettleAnswer.LOST, None)
    assert replace(view_of(store, held.id), now_ms=before.now_ms) == before
    assert stat(store, "wasted|blue|retried") == 13
    assert stat(store, f"tokens|blue|{MODEL}|completion") == 7
    assert store.settle(an_ending(fresh), "w2").outcome is Outcome.SUCCEEDED


def test_work_for_a_released_job_is_counted_once_and_does_not_change_the_job(store, held):
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7)
    assert store.release("w1", [held]) == 1
    for _ in range(3):
        store.account([(held, usage)], "w1")
    assert stat(store, "wasted|blue|retried") == 13
    assert (view_of(store, held.id).state, view_of(store, held.id).attempts) == (JobState.QUEUED, 0)


def test_counting_work_does_not_end_a_job_even_while_its_lease_is_valid(store, held):
    store.account([(held, Usage(prompt_tokens=10, completion_tokens=7))], "w1")
    assert view_of(store, held.id).state is JobState.RUNNING


def test_work_for_a_job_that_was_canceled_at_its_release_counts_as_wasted_by_the_cancel(store, held):
    store.cancel(held.id)
    assert store.release("w1", [held]) == 0
    assert view_of(store, held.id).state is JobState.CANCELED
    store.account([(held, Usage(prompt_tokens=10, completion_tokens=7))], "w1")
    assert (stat(store, "wasted|blue|canceled"), stat(store, "wasted|blue|retried")) == (17, 0)


def test_a_settle_with_an_old_claim_token_returns_lost_while_the_job_is_queued_again(store, held):
    pass_time(store, 16_500)
    store.reap()
    assert store.settle(an_ending(held), "w1").answer is SettleAnswer.LOST
    assert store.settle(an_ending(ClaimRef(held.id, "")), "w1").answer is SettleAnswer.LOST
    assert view_of(store, held.id).state is JobState.QUEUED


def test_a_settle_of_an_unknown_job_returns_gone_and_writes_nothing(store):
    before = contents(store)
    assert store.settle(an_ending(ClaimRef("nobody", "c")), "w1") == Settled(SettleAnswer.GONE, None)
    assert contents(store) == before


def test_a_job_flagged_for_cancel_ends_canceled_whatever_the_worker_reports(store, held):
    store.cancel(held.id)
    assert store.settle(an_ending(held, text="so far"), "w1").outcome is Outcome.CANCELED
    view = view_of(store, held.id)
    assert (view.state, view.code, view.finish_reason, view.text) == ("canceled", "canceled", "canceled", "so far")


def test_an_abandoned_job_ends_with_the_code_abandoned(store, held):
    store.cancel(held.id, code="abandoned")
    assert store.settle(an_ending(held), "w1").outcome is Outcome.CANCELED
    assert view_of(store, held.id).code == "abandoned"
    assert stat(store, "wasted|blue|abandoned") == 30


def test_a_success_less_than_a_second_after_the_deadline_still_counts(store, held):
    advance_clock(store, 60_500)
    assert store.settle(an_ending(held), "w1").outcome is Outcome.SUCCEEDED


def test_a_success_more_than_a_second_after_the_deadline_is_expired_and_keeps_its_text(store, held):
    advance_clock(store, 61_100)
    assert store.settle(an_ending(held, text="all of it"), "w1").outcome is Outcome.EXPIRED
    view = view_of(store, held.id)
    assert (view.state, view.code, view.stage, view.finish_reason, view.text) == (
        JobState.EXPIRED,
        "deadline_exceeded",
        "decode",
        "deadline",
        "all of it",
    )
    assert stat(store, "ended|expired") == 1
    assert stat(store, "wasted|blue|expired") == 30


def test_the_pools_mean_run_time_follows_the_succeeded_jobs(store):
    heartbeat(store)
    for run_ms in (1_000, 9_000):
        admitted(store, a_job())
        held = claim_one(store).held
        advance_clock(store, run_ms)
        heartbeat(store, "w1", held)
        store.settle(an_ending(held), "w1")
    assert 2_000 <= int(store.client.hget(keys.books(MODEL), "run_ms")) <= 2_100


@pytest.mark.parametrize("spoiled", ["-1", "0", "1.5", "abc", "9e15"])
def test_a_start_that_no_claim_wrote_does_not_change_the_pools_mean_run_time(store, held, spoiled):
    store.client.hset(keys.rq_job(held.id), "penstock_started_ms", spoiled)
    advance_clock(store, 400)
    store.settle(an_ending(held), "w1")
    assert 0 <= float(store.client.hget(keys.books(MODEL), "run_ms")) <= 400


def test_a_settle_counts_the_job_in_rqs_record_of_the_worker_but_never_creates_that_record(store, held):
    store.settle(an_ending(held), "w1")
    assert store.client.exists("rq:worker:w1") == 0
    store.client.hset("rq:worker:w1", "birth", "x")
    store.client.expire("rq:worker:w1", 60)
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
        admitted(store, a_job())
        store.settle(an_ending(claim_one(store).held, outcome), "w1")
    counts = store.client.hmget("rq:worker:w1", "successful_job_count", "failed_job_count")
    assert counts == [b"1", b"1"]


def test_results_are_kept_as_long_as_the_setting_says(store, settings):
    reconfigure(store, settings, result_ttl_s=100)
    heartbeat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert store.client.ttl(keys.result(held.id)) <= 100
    assert store.client.ttl(keys.rq_job(held.id)) <= 100


def test_settle_works_and_frees_the_place_when_memory_is_full(store, held, memory_is_full):
    with memory_is_full():
        assert store.settle(an_ending(held), "w1").outcome is Outcome.SUCCEEDED
        assert store.snapshot().inflight == 0
    assert view_of(store, held.id).text == "some words"


def _three_claimed(store) -> list[ClaimRef]:
    """Return claimed jobs of three tenants, the job of red first."""
    heartbeat(store)
    for tenant in ("red", "green", "blue"):
        admitted(store, a_job(tenant, deadline_ms=60_000))
    claimed = sorted((claim_one(store) for _ in range(3)), key=lambda job: job.tenant != "red")
    return [job.held for job in claimed]


def test_settle_many_answers_every_job_in_order(store):
    first, second, third = _three_claimed(store)
    store.settle(an_ending(second), "w1")
    store.client.script_flush()
    failed = an_ending(third, Outcome.FAILED, code="engine_error")
    answers = store.settle_many([an_ending(first), an_ending(second), failed, an_ending(ClaimRef("nobody", "t"))], "w1")
    assert answers == [
        Settled(SettleAnswer.SETTLED, Outcome.SUCCEEDED),
        Settled(SettleAnswer.ALREADY, Outcome.SUCCEEDED),
        Settled(SettleAnswer.SETTLED, Outcome.FAILED),
        Settled(SettleAnswer.GONE, None),
    ]
    assert store.settle_many([], "w1") == []


def test_a_claim_in_the_same_packet_follows_the_settles_and_has_its_own_answer(store):
    first, second, _ = _three_claimed(store)
    waiting = admitted(store, a_job("red"))
    store.client.script_flush()
    request = ClaimRequest("next", MODEL, room=2, cells_free=1_000)
    settled, claimed = store.settle_and_contend([an_ending(first), an_ending(second)], "w1", request)
    assert [one.answer for one in settled] == [SettleAnswer.SETTLED] * 2
    assert [job.id for job in claimed.started] == [waiting]
    assert store.settle_and_contend([an_ending(first)], "w1", request)[0] == [
        Settled(SettleAnswer.ALREADY, Outcome.SUCCEEDED)
    ]
    assert store.contend("w1", request).started == claimed.started


def test_an_error_of_the_claim_is_given_beside_the_answers_to_the_settles(store, monkeypatch):
    first, *_ = _three_claimed(store)
    argv = scripts.Script.argv

    def too_few(script: scripts.Script, **given: Any) -> list[scripts.Value]:
        return argv(script, **given)[: 2 if script.header.name == "claim" else None]

    monkeypatch.setattr(scripts.Script, "argv", too_few)
    request = ClaimRequest("next", MODEL, room=1, cells_free=100)
    settled, error = store.settle_and_contend([an_ending(first)], "w1", request)
    assert settled == [Settled(SettleAnswer.SETTLED, Outcome.SUCCEEDED)]
    assert isinstance(error, redis.ResponseError)
    assert store.touch(first.id).state == JobState.SUCCEEDED


def test_a_tenant_record_of_the_wrong_type_does_not_stop_the_settles_of_any_job(store):
    held = _three_claimed(store)
    store.client.set(keys.tenant("red"), "wrong type")
    answers = store.settle_many([an_ending(one) for one in held], "w1")
    assert answers == [Settled(SettleAnswer.SETTLED, Outcome.SUCCEEDED)] * 3
    store.reconcile("red", MODEL)


def test_settle_many_raises_an_error_when_the_store_cannot_write(store, memory_is_full):
    ends = [an_ending(held) for held in _three_claimed(store)]
    store.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailable):
            store.settle_many(ends, "w1")
    finally:
        store.client.config_set("min-replicas-to-write", 0)
    with memory_is_full():
        assert [one.outcome for one in store.settle_many(ends, "w1")] == [Outcome.SUCCEEDED] * 3
