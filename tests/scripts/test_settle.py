"""settle: a job ends once, by its lease's holder; the store has the last word on cancel and deadline."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from shared.errors import StoreUnavailable
from shared.jobs.job import Ending, Held, Usage
from shared.jobs.outcomes import Outcome, Stage
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.replies import SettleAnswer, Settled
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    beat,
    claim_one,
    contents,
    pass_time,
    reconfigure,
    seen,
    shift,
    stat,
)


@pytest.fixture
def held(store) -> Held:
    """A job of one minute that worker w1 runs."""
    beat(store)
    admitted(store, a_job(deadline_ms=60_000, payload={"prompt": "<secret>"}))
    return claim_one(store).held


def test_a_success_keeps_text_usage_and_message(store, held):
    usage = Usage(11, 3, 20, prefill_ms=5, decode_ms=190, ttft_ms=7)
    ending = an_ending(held, text="Es war 𝄞 einmal", usage=usage, message="m", extra={"logprobs": [1.5]})
    assert store.settle(ending, "w1") == Settled(SettleAnswer.SETTLED, Outcome.SUCCEEDED)
    view = seen(store, held.id)
    assert (view.state, view.finish_reason, view.code) == (JobState.SUCCEEDED, "length", "")
    assert (view.text, view.usage, view.message) == ("Es war 𝄞 einmal", usage, "m")
    assert view.extra == {"logprobs": [1.5]}
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
def test_any_other_ending_is_kept_as_the_worker_saw_it(store, held, outcome, code, stage):
    answer = store.settle(an_ending(held, outcome, code=code, stage=stage, text="so far"), "w1")
    assert answer == Settled(SettleAnswer.SETTLED, outcome)
    view = seen(store, held.id)
    assert (view.state, view.code, view.stage, view.text) == (outcome.value, code, stage or "", "so far")


def test_after_the_end_nothing_is_inflight_and_the_request_is_gone(store, held):
    store.settle(an_ending(held), "w1")
    snapshot = store.snapshot()
    assert (snapshot.inflight, snapshot.waiting, snapshot.running) == (0, 0, 0)
    assert store.client.exists(keys.payload(held.id), keys.leases(), keys.inflight()) == 0
    for key in (keys.rq_job(held.id), keys.result(held.id), f"rq:results:{held.id}"):
        assert 0 < store.client.ttl(key) <= 3_600
    assert 0 < store.client.ttl(keys.events(held.id)) <= 60


def test_followers_hear_of_the_end(store, held):
    store.settle(an_ending(held), "w1")
    *_, (_, last) = store.read_events({held.id: "0"}, block_ms=100)[held.id]
    assert last == {"type": "ended", "outcome": "succeeded"}


def test_a_second_settle_answers_already_and_changes_nothing(store, held):
    store.settle(an_ending(held), "w1")
    before = contents(store)
    again = store.settle(an_ending(held, Outcome.FAILED, text="other"), "w1")
    assert again == Settled(SettleAnswer.ALREADY, Outcome.SUCCEEDED)
    assert contents(store) == before
    assert stat(store, "ended|succeeded") == 1
    assert stat(store, "ended|failed") == 0


def test_of_many_settles_at_once_one_counts(store, held):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: store.settle(an_ending(held), "w1").answer, range(50)))
    assert answers.count(SettleAnswer.SETTLED) == 1
    assert answers.count(SettleAnswer.ALREADY) == 49
    assert stat(store, f"tokens|blue|{MODEL}|completion") == 20


def test_a_stale_holder_is_told_that_it_lost_and_its_work_is_counted_as_wasted(store, held):
    pass_time(store, 16_500)
    store.reap()
    fresh = claim_one(store, "w2").held
    before = seen(store, held.id)
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7)
    # Said again, it is the same work.
    for _ in range(3):
        assert store.settle(an_ending(held, usage=usage), "w1") == Settled(SettleAnswer.LOST, None)
    assert replace(seen(store, held.id), now_ms=before.now_ms) == before
    assert stat(store, "wasted|blue|retried") == 13
    assert stat(store, f"tokens|blue|{MODEL}|completion") == 7
    assert store.settle(an_ending(fresh), "w2").outcome is Outcome.SUCCEEDED


def test_work_for_a_job_that_went_back_is_counted_once_and_moves_nothing(store, held):
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7)
    assert store.release("w1", [held]) == 1
    for _ in range(3):
        store.account([(held, usage)], "w1")
    assert stat(store, "wasted|blue|retried") == 13
    assert (seen(store, held.id).state, seen(store, held.id).attempts) == (JobState.QUEUED, 0)


def test_work_that_is_counted_ends_nothing_even_under_a_lease_that_holds(store, held):
    store.account([(held, Usage(prompt_tokens=10, completion_tokens=7))], "w1")
    assert seen(store, held.id).state is JobState.RUNNING


def test_work_for_a_job_that_ended_as_it_was_given_back_is_waste_of_that_end(store, held):
    store.cancel(held.id)
    assert store.release("w1", [held]) == 0
    assert seen(store, held.id).state is JobState.CANCELED
    store.account([(held, Usage(prompt_tokens=10, completion_tokens=7))], "w1")
    assert (stat(store, "wasted|blue|canceled"), stat(store, "wasted|blue|retried")) == (17, 0)


def test_a_stale_holder_loses_while_the_job_waits_again_too(store, held):
    pass_time(store, 16_500)
    store.reap()
    assert store.settle(an_ending(held), "w1").answer is SettleAnswer.LOST
    assert store.settle(an_ending(Held(held.id, "")), "w1").answer is SettleAnswer.LOST
    assert seen(store, held.id).state is JobState.QUEUED


def test_a_settle_of_an_unknown_job_is_told_so_and_leaves_nothing(store):
    before = contents(store)
    assert store.settle(an_ending(Held("nobody", "c")), "w1") == Settled(SettleAnswer.GONE, None)
    assert contents(store) == before


def test_a_job_canceled_first_ends_canceled_whatever_the_worker_reports(store, held):
    store.cancel(held.id)
    assert store.settle(an_ending(held, text="so far"), "w1").outcome is Outcome.CANCELED
    view = seen(store, held.id)
    assert (view.state, view.code, view.finish_reason, view.text) == ("canceled", "canceled", "canceled", "so far")


def test_an_abandoned_job_says_so_when_it_ends(store, held):
    store.cancel(held.id, code="abandoned")
    assert store.settle(an_ending(held), "w1").outcome is Outcome.CANCELED
    assert seen(store, held.id).code == "abandoned"
    assert stat(store, "wasted|blue|abandoned") == 30


def test_a_success_within_the_grace_of_a_second_is_one(store, held):
    shift(store, 60_500)
    assert store.settle(an_ending(held), "w1").outcome is Outcome.SUCCEEDED


def test_a_success_later_than_that_is_expired_and_keeps_its_text(store, held):
    shift(store, 61_100)
    assert store.settle(an_ending(held, text="all of it"), "w1").outcome is Outcome.EXPIRED
    view = seen(store, held.id)
    assert (view.state, view.code, view.stage, view.finish_reason, view.text) == (
        JobState.EXPIRED,
        "deadline_exceeded",
        "decode",
        "deadline",
        "all of it",
    )
    assert stat(store, "ended|expired") == 1
    assert stat(store, "wasted|blue|expired") == 30


def test_an_ending_is_counted_once_by_tenant_model_and_outcome(store, held):
    store.settle(an_ending(held, usage=Usage(300, 40, 21, 5, 200, 30)), "w1")
    assert stat(store, "ended|succeeded") == 1
    assert stat(store, f"ended|blue|{MODEL}|succeeded") == 1
    assert [stat(store, f"tokens|blue|{MODEL}|{kind}") for kind in ("prompt", "cached", "completion")] == [300, 40, 21]
    assert stat(store, f"h|time_to_first_token|blue|{MODEL}|m|50") == 1
    assert stat(store, f"h|time_per_output_token|blue|{MODEL}|10") == 1
    assert stat(store, f"h|request_duration|succeeded|blue|{MODEL}|sum") >= 0


def test_an_ending_without_tokens_is_no_measurement(store, held):
    store.settle(Ending(held.id, held.token, Outcome.FAILED, code="context_length_exceeded"), "w1")
    assert not [name for name in store.snapshot().stats if name.startswith(("h|time_", "wasted"))]
    assert store.client.hget(keys.tenant("blue"), "service_mwt") == b"0"


def test_the_pools_mean_run_follows_what_succeeds(store):
    beat(store)
    for run_ms in (1_000, 9_000):
        admitted(store, a_job())
        held = claim_one(store).held
        shift(store, run_ms)
        beat(store, "w1", held)
        store.settle(an_ending(held), "w1")
    assert 2_000 <= int(store.client.hget(keys.books(MODEL), "run_ms")) <= 2_100


def test_rqs_record_of_the_worker_counts_its_jobs_and_is_not_made_by_it(store, held):
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
    beat(store)
    admitted(store, a_job())
    held = claim_one(store).held
    store.settle(an_ending(held), "w1")
    assert store.client.ttl(keys.result(held.id)) <= 100
    assert store.client.ttl(keys.rq_job(held.id)) <= 100


def test_running_jobs_settle_without_memory_and_places_come_free(store, held, memory_is_full):
    with memory_is_full():
        assert store.settle(an_ending(held), "w1").outcome is Outcome.SUCCEEDED
        assert store.snapshot().inflight == 0
    assert seen(store, held.id).text == "some words"


def _three_held(store) -> list[Held]:
    """Jobs of three tenants, the first of them red."""
    beat(store)
    for tenant in ("red", "green", "blue"):
        admitted(store, a_job(tenant, deadline_ms=60_000))
    claimed = sorted((claim_one(store) for _ in range(3)), key=lambda job: job.tenant != "red")
    return [job.held for job in claimed]


def test_many_ends_in_one_round_trip_are_each_answered_in_their_order(store):
    first, second, third = _three_held(store)
    store.settle(an_ending(second), "w1")
    store.client.script_flush()
    failed = an_ending(third, Outcome.FAILED, code="engine_error")
    answers = store.settle_many([an_ending(first), an_ending(second), failed, an_ending(Held("nobody", "t"))], "w1")
    assert answers == [
        Settled(SettleAnswer.SETTLED, Outcome.SUCCEEDED),
        Settled(SettleAnswer.ALREADY, Outcome.SUCCEEDED),
        Settled(SettleAnswer.SETTLED, Outcome.FAILED),
        Settled(SettleAnswer.GONE, None),
    ]
    assert store.settle_many([], "w1") == []


def test_one_broken_record_does_not_hold_up_the_ends_of_others(store):
    broken, second, third = _three_held(store)
    red = keys.tenant("red")
    store.client.rename(red, f"{red}-aside")
    store.client.set(red, "somebody's hand")
    fault, *others = store.settle_many([an_ending(held) for held in (broken, second, third)], "w1")
    store.client.rename(f"{red}-aside", red)
    assert isinstance(fault, redis.ResponseError)
    assert others == [Settled(SettleAnswer.SETTLED, Outcome.SUCCEEDED)] * 2
    assert store.settle(an_ending(broken), "w1").outcome is Outcome.SUCCEEDED


def test_ends_that_cannot_be_written_are_no_answers_but_a_fault(store, memory_is_full):
    ends = [an_ending(held) for held in _three_held(store)]
    store.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailable):
            store.settle_many(ends, "w1")
    finally:
        store.client.config_set("min-replicas-to-write", 0)
    with memory_is_full():
        assert [one.outcome for one in store.settle_many(ends, "w1")] == [Outcome.SUCCEEDED] * 3
