"""Tests of the budgets of tenants: what inflight jobs reserve, what their ends count, and what is refused."""

from shared.accounts.tenants import Tenants
from shared.jobs.job import Usage
from shared.jobs.outcomes import Refusal
from tests.support.budgets import LAST_MS, MIDDLE_MS, MOST, at, counted, end_one, set_budget
from tests.support.builders import a_job, admitted, an_ending, claim_one, pass_time, refused

# Counting.


def test_an_inflight_job_reserves_the_most_that_it_can_use_and_its_end_counts_what_its_client_is_told(evening):
    admitted(evening, a_job())
    assert counted(evening) == (0, 0, MOST)
    job = claim_one(evening)
    assert counted(evening) == (0, 0, MOST)
    for _ in range(2):
        evening.settle(an_ending(job.held, usage=Usage(12, 5, 7)), "w1")
        assert counted(evening) == (19, 19, 0)


def test_jobs_that_end_without_an_answer_give_back_what_was_reserved(evening):
    ends = (evening.cancel, lambda _: pass_time(evening, 61_000, beating="w1"))
    for end in ends:
        end(admitted(evening, a_job()))
        evening.reap()
        assert evening.overview().inflight == 0
        assert counted(evening) == (0, 0, 0)


def test_a_job_that_is_tried_three_times_is_reserved_once_and_given_back_once(evening):
    admitted(evening, a_job(deadline_ms=3_600_000))
    for _ in range(3):
        assert counted(evening)[2] == MOST
        claim_one(evening)
        pass_time(evening, 16_000, beating="w2")
        evening.reap()
    assert evening.overview().inflight == 0
    assert counted(evening)[2] == 0


def test_a_job_that_is_released_and_run_again_counts_only_what_its_client_is_told(evening):
    admitted(evening, a_job())
    lost = claim_one(evening)
    evening.release("w1", [lost.held])
    evening.account([(lost.held, Usage(10, 0, 3))], "w1")
    assert counted(evening) == (0, 0, MOST)
    end_one(evening, 10, 4)
    assert counted(evening) == (14, 14, 0)


def test_tokens_count_on_the_day_on_which_their_job_ended(evening):
    admitted(evening, a_job())
    admitted(evening, a_job())
    end_one(evening, 10, 5)
    at(evening, MIDDLE_MS + 20_000)
    assert counted(evening) == (15, 15, MOST)
    end_one(evening, 10, 7)
    assert counted(evening) == (17, 32, 0)


def test_a_new_month_begins_with_nothing_but_what_is_reserved(store):
    at(store, LAST_MS)
    for _ in range(2):
        admitted(store, a_job())
    end_one(store)
    at(store, LAST_MS + 20_000)
    end_one(store, 10, 5)
    assert counted(store) == (15, 15, 0)


def test_a_job_counts_by_the_weights_of_its_admission(evening):
    set_budget(evening, prompt_weight=0.5, answer_weight=3.0)
    admitted(evening, a_job(deadline_ms=30_000))
    assert counted(evening)[2] == 5 + 60
    set_budget(evening, prompt_weight=None, answer_weight=0.0)
    admitted(evening, a_job())
    assert counted(evening)[2] == 65 + 10
    end_one(evening, 10, 4)
    assert counted(evening) == (5 + 12, 17, 10)
    end_one(evening, 10, 4)
    assert counted(evening) == (17 + 10, 27, 0)


# Refusals.


def test_a_budget_for_a_day_refuses_what_could_exceed_it_until_the_next_day(evening):
    set_budget(evening, tokens_per_day=100)
    for _ in range(3):
        admitted(evening, a_job())
    for attempt in range(3):
        answer = refused(evening, a_job(), attempt=attempt)
        assert (answer.reason, answer.limit) == (Refusal.BUDGET_EXHAUSTED, "tenant_tokens_per_day")
        assert (answer.value, answer.max) == (90, 100)
        assert (answer.retry_hint_ms, answer.too_long, answer.resets_ms) == (60_000, True, MIDDLE_MS + 10_000)
        assert (answer.hopeless, answer.retry_ms) == (False, 0)
    end_one(evening, 10, 0)
    admitted(evening, a_job())
    assert counted(evening) == (10, 10, 90)
    assert refused(evening, a_job()).value == 100
    at(evening, MIDDLE_MS + 20_000)
    assert refused(evening, a_job()).value == 90
    end_one(evening, 10, 0)
    admitted(evening, a_job())


def test_a_job_that_uses_the_last_token_is_admitted(evening):
    set_budget(evening, tokens_per_day=2 * MOST)
    admitted(evening, a_job())
    admitted(evening, a_job())
    assert refused(evening, a_job(max_tokens=1, prompt_tokens=1)).value == 2 * MOST


def test_a_budget_for_a_month_is_named_before_one_for_a_day_because_it_begins_anew_later(evening):
    set_budget(evening, tokens_per_day=40, tokens_per_month=50)
    admitted(evening, a_job())
    answer = refused(evening, a_job())
    assert (answer.limit, answer.resets_ms) == ("tenant_tokens_per_month", LAST_MS + 10_000)
    set_budget(evening, tokens_per_month=60)
    assert refused(evening, a_job()).limit == "tenant_tokens_per_day"


def test_a_job_larger_than_a_whole_budget_is_told_so_and_not_when_the_budget_begins_anew(evening):
    set_budget(evening, tokens_per_day=MOST - 1, tokens_per_month=MOST)
    answer = refused(evening, a_job())
    assert (answer.limit, answer.value, answer.max) == ("tenant_tokens_per_day", MOST, MOST - 1)
    assert answer.resets_ms == 0
    admitted(evening, a_job(max_tokens=1))
    answer = refused(evening, a_job())
    assert (answer.limit, answer.resets_ms) == ("tenant_tokens_per_day", 0), "although the month is exhausted too"


def test_tokens_that_were_used_before_a_budget_was_set_count_in_it(evening):
    admitted(evening, a_job())
    end_one(evening)
    set_budget(evening, tokens_per_day=50)
    assert refused(evening, a_job()).value == 30


def test_a_budget_that_is_lowered_below_what_is_used_refuses_and_stops_no_job(evening):
    set_budget(evening, tokens_per_day=1_000)
    for _ in range(2):
        admitted(evening, a_job())
    set_budget(evening, tokens_per_day=MOST)
    answer = refused(evening, a_job())
    assert (answer.value, answer.max) == (60, MOST)
    for _ in range(2):
        end_one(evening)
    assert counted(evening) == (60, 60, 0)


def test_a_tenant_that_is_removed_and_made_again_has_used_what_it_used(evening):
    set_budget(evening, tokens_per_day=70)
    for _ in range(2):
        admitted(evening, a_job())
    end_one(evening)
    Tenants(evening.client).remove("blue")
    admitted(evening, a_job())
    set_budget(evening, tokens_per_day=70)
    assert refused(evening, a_job()).value == 90


def test_a_newer_job_may_use_what_is_reserved_for_the_queued_job_that_it_replaces(evening):
    set_budget(evening, tokens_per_day=MOST)
    admitted(evening, a_job(supersede_digest="draft"))
    admitted(evening, a_job(supersede_digest="draft"))
    assert counted(evening) == (0, 0, MOST)
    claim_one(evening)
    assert refused(evening, a_job(supersede_digest="draft")).reason is Refusal.BUDGET_EXHAUSTED


def test_a_repeated_offer_reserves_once(evening):
    job = a_job()
    for _ in range(3):
        admitted(evening, job)
    assert counted(evening) == (0, 0, MOST)


def test_a_quote_has_the_verdict_of_the_budget(evening):
    set_budget(evening, tokens_per_day=2 * MOST - 1)
    admitted(evening, a_job())
    quote = evening.quote(a_job(model="m"))
    assert quote.refused is not None
    assert (quote.refused.reason, quote.refused.max) == (Refusal.BUDGET_EXHAUSTED, 2 * MOST - 1)
    assert (quote.refused.retry_hint_ms, quote.refused.too_long) == (60_000, True)
    assert quote.refused.resets_ms == MIDDLE_MS + 10_000
