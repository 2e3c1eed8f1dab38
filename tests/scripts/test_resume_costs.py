"""Tests of the cost of a job that continues: each token is charged once, and tokens computed twice are waste."""

import pytest

from shared.jobs.job import Usage
from shared.store import keys
from tests.support.answers import FINGERPRINT, Answer, a_start, give_back
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    an_ending,
    heartbeat,
    reconfigure,
    stat,
)
from tests.support.pressure import a_long_job, a_quiet_pool, claim_job, raise_tier, set_answer_lengths

#: A job of `a_job` in thousandths of a weighted token: 10 prompt tokens, and 20 generated tokens of 4 each.
PROMPT, TOKEN, WHOLE = 10_000, 4_000, 90_000


def service(store, owner="blue"):
    return int(store.client.hget(keys.tenant(owner), keys.service_field(MODEL)) or 0)


def queued_work(store, owner="blue"):
    return int(store.client.hget(keys.tenant(owner), "waiting_mwt") or 0)


def given_back(store, *ids, **fields):
    """Return a queued job that has these tokens."""
    heartbeat(store)
    admitted(store, a_job(**fields))
    job = a_start(store)
    if ids:
        Answer(store, job).goes_on("Once", ids)
    give_back(store, job)
    return job


def test_the_charge_for_kept_tokens_stays_and_the_queue_counts_what_is_left(store):
    given_back(store, *range(5))
    assert service(store) == PROMPT + 5 * TOKEN
    # A prompt of 15 tokens, and an answer of 15.
    assert queued_work(store) == 15_000 + 15 * TOKEN


def test_a_job_without_tokens_gets_its_charge_back(store):
    given_back(store)
    assert (service(store), queued_work(store)) == (0, WHOLE)


def test_each_token_of_a_job_that_was_given_back_three_times_is_charged_once(store):
    job = given_back(store, 1, 2)
    for attempt in range(3):
        job = a_start(store)
        assert (service(store), queued_work(store)) == (WHOLE, 0)
        Answer(store, job).goes_on("x", [attempt])
        if attempt < 2:
            give_back(store, job)
            assert service(store) == PROMPT + (3 + attempt) * TOKEN
    store.settle(an_ending(job.held, usage=Usage(10, 0, 20, again_tokens=14)), "w1")
    assert service(store) == WHOLE


def test_an_answer_that_is_longer_than_expected_is_expected_to_have_one_token_left(store):
    given_back(store, *range(8), cost_mwt=PROMPT + 4 * TOKEN)
    assert queued_work(store) == PROMPT + 8_000 + TOKEN
    a_start(store)
    assert service(store) == PROMPT + 9 * TOKEN


def test_a_job_that_starts_anew_is_charged_as_if_it_had_not_run(store):
    given_back(store, 1, 2, 3)
    a_start(store, "w2", fingerprint="another model")
    assert service(store) == WHOLE


def test_in_turns_mode_a_job_that_continues_costs_one_turn(store, settings):
    reconfigure(store, settings, fairness="turns")
    given_back(store, 1, 2, 3)
    assert service(store) == 0
    a_start(store)
    assert service(store) == 1_000


def test_with_preemption_a_job_that_continues_is_charged_what_it_has_cost_so_far(store, settings):
    reconfigure(store, settings, preemption="on")
    heartbeat(store, facts={"can_pause": 1})
    given_back(store, 1, 2, 3)
    assert service(store) == PROMPT + 3 * TOKEN
    job = a_start(store)
    assert service(store) == PROMPT + 3 * TOKEN
    store.settle(an_ending(job.held, usage=Usage(10, 0, 20)), "w1")
    assert service(store) == WHOLE


def test_a_job_with_kept_tokens_that_is_canceled_in_the_queue_stays_charged_for_them(store):
    job = given_back(store, 1, 2)
    store.cancel(job.id)
    assert (service(store), queued_work(store)) == (PROMPT + 2 * TOKEN, 0)


@pytest.mark.parametrize("after", ["@g", "@h", ""])
@pytest.mark.parametrize("before", ["@g", ""])
def test_a_group_pays_for_what_is_computed_while_the_tenant_is_in_it(store, before, after):
    def join(group):
        fields = {"policy": "1", "policy_group": group.removeprefix("@")}
        store.client.hset(keys.tenant("blue"), mapping=fields)

    owners = {"blue", before, after} - {""}
    join(before)
    given_back(store, 1, 2)
    kept = PROMPT + 2 * TOKEN
    assert [service(store, owner) for owner in owners & {"blue", before}] == [kept] * len(owners & {"blue", before})
    join(after)
    store.reconcile("blue", MODEL)
    # A tenant that joins a group starts at another service.
    served = {owner: service(store, owner) for owner in owners}
    store.settle(an_ending(a_start(store).held, usage=Usage(10, 0, 20)), "w1")
    expected = dict.fromkeys(owners, 0) | {"blue": WHOLE - kept}
    if after:
        expected[after] = WHOLE - kept if after == before else WHOLE
    assert {owner: service(store, owner) - served[owner] for owner in owners} == expected


def test_what_is_computed_twice_is_waste_and_each_token_counts_once_as_used(store):
    given_back(store, *range(5))
    job = a_start(store, "w2")
    store.settle(an_ending(job.held, usage=Usage(10, 0, 20, again_tokens=14)), "w2")
    assert stat(store, f"tokens|blue|{MODEL}|completion") == 20
    assert stat(store, f"tokens|blue|{MODEL}|prompt") == 10 + 14
    assert stat(store, "wasted|blue|retried") == 14


def test_a_worker_that_lost_a_job_reports_only_the_tokens_that_were_not_kept_as_waste(store):
    lost = given_back(store, *range(5))
    store.account([(lost.held, Usage(prompt_tokens=10, completion_tokens=8))], "w1")
    assert (stat(store, "wasted|blue|retried"), stat(store, f"tokens|blue|{MODEL}|completion")) == (3, 3)
    job = a_start(store, "w2")
    store.account([(lost.held, Usage(prompt_tokens=10, completion_tokens=8))], "w1")
    store.settle(an_ending(job.held, usage=Usage(10, 0, 20, again_tokens=14)), "w2")
    assert stat(store, "wasted|blue|retried") == 3 + 14
    used = sum(stat(store, f"tokens|blue|{MODEL}|{kind}") for kind in ("prompt", "completion"))
    assert used - stat(store, "wasted|blue|retried") == 10 + 20


def test_a_worker_that_lost_a_job_which_started_anew_reports_all_its_tokens_as_waste(store):
    lost = given_back(store, *range(5))
    a_start(store, "w2", fingerprint="another model")
    store.account([(lost.held, Usage(prompt_tokens=10, completion_tokens=8))], "w1")
    assert stat(store, "wasted|blue|retried") == 18


def test_a_job_that_continues_has_no_first_token_and_only_its_own_time_per_token(store):
    given_back(store, *range(10))
    job = a_start(store)
    store.settle(an_ending(job.held, usage=Usage(10, 0, 20, 5, decode_ms=90, ttft_ms=7)), "w1")
    stats = store.snapshot(stats=True).stats
    assert not [name for name in stats if name.startswith("h|time_to_first_token")]
    assert stats[f"h|time_per_output_token|blue|{MODEL}|sum_us"] == 10_000


@pytest.mark.parametrize(("fingerprint", "kept", "longer_by"), [(FINGERPRINT, 100, 100 - 5), ("another model", 0, 0)])
def test_an_answer_is_cut_to_what_fits_after_the_tokens_that_the_worker_can_use(
    store, settings, fingerprint, kept, longer_by
):
    """A generated token takes 20 ms, and computing the 100 kept ones again takes as long as five of them."""
    pool = a_quiet_pool(store, settings)
    raise_tier(pool)
    store.client.hset(keys.worker("w1"), "fingerprint", FINGERPRINT)
    set_answer_lengths(pool, "blue", 500)
    job = claim_job(pool, admitted(store, a_long_job()))
    Answer(store, job).goes_on("x", range(100))
    give_back(store, job)
    store.client.hset(keys.worker("w1"), "fingerprint", fingerprint)
    again = claim_job(pool, job.id)
    assert (job.max_tokens < 400, len(again.answer)) == (True, kept)
    assert again.max_tokens == job.max_tokens + longer_by
