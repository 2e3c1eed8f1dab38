"""Full admission, check by check: each refuses by itself, and each is what its test would miss."""

import json

import pytest

from shared.jobs.job import Usage
from shared.jobs.outcomes import Refused
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import (
    MODEL,
    a_beat,
    a_job,
    admitted,
    an_ending,
    claim_one,
    reconfigure,
    refused,
    shift,
    stat,
)

#: A pool of 4 slots that does 1,000 weighted tokens a second: 8 s of work is 8,000 of them.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


@pytest.fixture
def pool(store, settings):
    """A pool with known rates, bounds far away, and every slot taken by the tenant `filler`."""
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
    beat(store)
    for _ in range(4):
        admitted(store, a_job("filler"))
    assert len(store.claim("w1", "filling", MODEL, room=4, cells_free=4_096)) == 4
    return store


def beat(store, **rates):
    store.renew(a_beat(slots=4, facts=RATES | rates), [])


def work(tenant: str, wt: int, **spelled):
    """A job of so many weighted tokens."""
    return a_job(tenant, cost_mwt=1_000 * wt, **spelled)


def end_well(store, tenant: str, tokens: int, times: int = 8) -> None:
    """So many answers of a tenant, each of so many tokens."""
    for _ in range(times):
        admitted(store, a_job(tenant, max_tokens=10_000, deadline_ms=600_000))
        held = claim_one(store).held
        store.settle(an_ending(held, usage=Usage(10, 0, tokens, 1, 1, 1)), "w1")


def test_what_one_tenant_may_wait_with_shrinks_as_the_pool_fills(pool):
    admitted(pool, work("blue", 3_000))
    # Half of what is free of 8,000: 2,500 each, were there one other tenant.
    answer = refused(pool, work("blue", 3_000))
    assert (answer.reason, answer.limit) == ("tenant_share_full", "tenant_waiting_work")
    assert (answer.value, answer.max) == (3_000, 5_000)
    admitted(pool, work("blue", 1_000))
    admitted(pool, work("green", 3_000))
    assert refused(pool, work("green", 10)).reason == "tenant_share_full"


def test_a_weight_moves_the_threshold(pool):
    pool.client.hset(keys.tenant("blue"), mapping={"policy": "1", "policy_weight_milli": "3000"})
    pool.client.zadd(keys.tenants(), {"blue": 1})
    admitted(pool, work("green", 1_000))
    admitted(pool, work("blue", 1_000))
    # Of 6,000 that are free, green's quarter is 1,500 and blue's three are 4,500.
    assert refused(pool, work("green", 600)).max == 1_500
    admitted(pool, work("blue", 3_400))


def test_a_full_backlog_refuses_whom_its_share_would_let_in(pool):
    for name in ("a", "b", "c"):
        admitted(pool, work(name, 3_400))
    # 10,200 wait of 8,000 and a quarter more: even who has nothing waiting is told to come back.
    answer = refused(pool, work("late", 10))
    assert (answer.reason, answer.value, answer.max) == ("backlog_full", 10_200, 8_000)
    assert answer.retry_hint_ms >= 200


def test_who_has_nothing_waiting_may_come_until_a_quarter_more_than_the_backlog_waits(pool):
    for name in ("a", "b"):
        admitted(pool, work(name, 4_500))
    admitted(pool, work("late", 10))


def test_two_mean_jobs_of_each_tenant_may_wait_however_slow_the_pool(pool):
    pool.client.hset(keys.books(MODEL), "mean_mwt", 6_000_000)
    for name in ("a", "b"):
        admitted(pool, work(name, 6_000))
    # 12,000 wait; 8 s of work and its quarter are 10,000, two jobs of two tenants 24,000.
    admitted(pool, work("late", 10))


def test_a_tenant_with_nothing_waiting_may_always_queue_one_job_of_any_cost(pool):
    admitted(pool, work("huge", 1_000_000, deadline_ms=600_000))


def test_an_answer_that_cannot_be_ready_in_time_is_not_begun(pool):
    # 20 tokens of 20 ms each and a prompt of 10 ms: 410 ms, and four fifths of 500 are 400.
    answer = refused(pool, a_job(deadline_ms=500))
    assert (answer.reason, answer.value, answer.max) == ("deadline_unmeetable", 410, 400)
    assert not answer.hopeless
    assert answer.answer_ms == 410
    admitted(pool, a_job(deadline_ms=600))


def test_what_waits_before_it_counts_against_its_deadline(pool):
    admitted(pool, work("blue", 2_000))
    admitted(pool, work("green", 1_000, deadline_ms=1_000))
    assert refused(pool, work("blue", 100, deadline_ms=3_000)).reason == "deadline_unmeetable"
    admitted(pool, work("blue", 100, deadline_ms=30_000))


def test_the_wait_for_a_slot_counts_too_when_all_are_taken(pool):
    pool.client.hset(keys.books(MODEL), "run_ms", 4_000)
    # One of 4 slots comes free each second: 1,410 ms, and four fifths of 1,700 are 1,360.
    assert refused(pool, a_job(deadline_ms=1_700)).value == 1_410
    admitted(pool, a_job(deadline_ms=1_800))


def test_with_a_free_slot_and_nothing_waiting_the_whole_patience_may_be_used(store):
    beat(store)
    admitted(store, a_job(deadline_ms=420))
    assert refused(store, a_job(deadline_ms=420)).reason == "deadline_unmeetable"


def test_what_even_an_empty_system_could_not_do_gets_no_promise(store):
    beat(store)
    assert refused(store, a_job(deadline_ms=300)).hopeless


def test_a_prompt_that_alone_takes_longer_than_the_first_token_may_gets_no_promise(pool):
    assert refused(pool, a_job(prompt_tokens=1_000, start_within_ms=900)).hopeless
    assert not refused(pool, a_job(prompt_tokens=1_000, start_within_ms=1_000)).hopeless


def test_the_first_token_has_a_deadline_of_its_own(pool):
    admitted(pool, work("blue", 3_000))
    assert refused(pool, work("blue", 10, start_within_ms=2_000)).reason == "deadline_unmeetable"
    admitted(pool, work("blue", 10, start_within_ms=20_000))


def test_a_tenants_median_answer_is_what_its_deadline_is_judged_by(pool):
    assert refused(pool, a_job("long", max_tokens=1_000, deadline_ms=2_500)).reason == "deadline_unmeetable"
    end_well(pool, "brief", 10)
    admitted(pool, a_job("brief", max_tokens=1_000, deadline_ms=2_500))


def test_who_waits_with_less_than_its_share_is_judged_by_its_shorter_answers(pool):
    end_well(pool, "mixed", 10, times=3)
    end_well(pool, "mixed", 1_000, times=5)
    admitted(pool, work("green", 10))
    admitted(pool, work("mixed", 1_000, max_tokens=2_000, deadline_ms=9_000))
    answer = refused(pool, work("mixed", 10, max_tokens=2_000, deadline_ms=9_000))
    assert (answer.reason, answer.value > 20_000) == ("deadline_unmeetable", True)


def test_costs_are_learned_from_eight_answers_and_never_more_than_asked_for(store):
    beat(store)
    before = admitted(store, a_job(max_tokens=1_000, cost_mwt=None))
    assert store.client.hget(keys.rq_job(before), "penstock_cost_mwt") == b"522000"
    store.cancel(before)
    end_well(store, "blue", 40)
    learned = admitted(store, a_job(max_tokens=1_000, cost_mwt=None))
    assert store.client.hget(keys.rq_job(learned), "penstock_cost_mwt") == b"170000"
    brief = admitted(store, a_job(max_tokens=5, cost_mwt=None))
    assert store.client.hget(keys.rq_job(brief), "penstock_cost_mwt") == b"30000"
    other = admitted(store, a_job("new", max_tokens=1_000, cost_mwt=None))
    assert store.client.hget(keys.rq_job(other), "penstock_cost_mwt") == b"170000"


@pytest.mark.parametrize("spoil", [{"mu_wtps": 0}, {"prefill_tps": -1}, {"tpot_ms": 0}])
def test_where_a_rate_is_missing_nobody_is_refused_by_prediction(store, spoil):
    beat(store, **spoil)
    admitted(store, a_job(deadline_ms=1))


def test_in_bounds_admission_nobody_is_refused_by_prediction(store, settings):
    reconfigure(store, settings, admission="bounds")
    beat(store)
    admitted(store, a_job(deadline_ms=1))


def test_rates_older_than_ten_seconds_are_no_rates(store):
    beat(store)
    assert isinstance(store.admit(a_job(deadline_ms=300)), Refused)
    shift(store, 10_001)
    store.renew(a_beat(slots=4), [])
    store.client.hdel(keys.worker("w1"), "mu_wtps")
    assert isinstance(store.admit(a_job(deadline_ms=300)), Refused)
    store.client.hset(keys.books(MODEL), "rates_ms", 0)
    assert isinstance(store.admit(a_job(deadline_ms=300)), Admitted)


def test_a_floods_appointments_move_apart_and_push_no_others_hints(pool, settings):
    reconfigure(pool, settings, max_inflight=5, max_queue_size=100)
    admitted(pool, work("flood", 1_000))
    flood = [refused(pool, work("flood", 1_000)).retry_hint_ms for _ in range(6)]
    assert flood == sorted(flood)
    assert flood[-1] > 5_000
    assert refused(pool, work("light", 100)).retry_hint_ms < 1_500


def test_what_a_tenant_was_given_beyond_what_waits_of_it_moves_its_appointment_too(pool, settings):
    """All that it asked for, less what waits: jobs that are on their way count against the next."""
    for _ in range(2):
        admitted(pool, work("flood", 2_000))
    assert len(pool.claim("w1", "more", MODEL, room=2, cells_free=4_096)) == 2
    reconfigure(pool, settings, max_inflight=6)
    # Of 4,000 wt and 1,000 more nothing waits: at 1,000 a second they are 5 s of the pool.
    assert 4_500 <= refused(pool, work("flood", 1_000)).retry_hint_ms <= 6_000
    assert refused(pool, work("light", 1_000)).retry_hint_ms <= 1_200


def test_what_waits_of_a_tenant_is_no_reason_to_come_later(pool, settings):
    admitted(pool, work("flood", 4_000))
    reconfigure(pool, settings, max_inflight=5)
    assert 1_000 <= refused(pool, work("flood", 1_000)).retry_hint_ms <= 1_200


def test_no_appointment_lies_more_than_a_minute_ahead(pool, settings):
    reconfigure(pool, settings, max_inflight=4)
    for _ in range(5):
        refused(pool, work("flood", 50_000))
    shift(pool, 61_000)
    beat(pool)
    assert refused(pool, work("flood", 100)).retry_hint_ms < 1_000


def test_the_same_request_refused_twice_books_one_appointment(pool, settings):
    reconfigure(pool, settings, max_inflight=4)
    one = work("blue", 1_000)
    refused(pool, one)
    booked = pool.client.zscore(keys.appointments(MODEL), "blue")
    refused(pool, one)
    assert pool.client.zscore(keys.appointments(MODEL), "blue") == booked


def test_who_comes_back_books_nothing_while_its_appointment_lies_ahead(pool, settings):
    reconfigure(pool, settings, max_inflight=4)
    refused(pool, work("blue", 1_000))
    booked = pool.client.zscore(keys.appointments(MODEL), "blue")
    refused(pool, work("blue", 1_000), attempt=1)
    assert pool.client.zscore(keys.appointments(MODEL), "blue") == booked
    refused(pool, work("blue", 1_000))
    assert pool.client.zscore(keys.appointments(MODEL), "blue") > booked


def test_how_far_hints_are_off_is_measured_when_a_client_comes_back(pool, settings):
    reconfigure(pool, settings, max_inflight=5)
    admitted(pool, work("blue", 10))
    hint_ms = refused(pool, work("green", 10)).retry_hint_ms
    reconfigure(pool, settings, max_inflight=50)
    shift(pool, hint_ms)
    beat(pool)
    assert isinstance(pool.admit(work("green", 10), attempt=1), Admitted)
    assert stat(pool, "h|retry_hint_error|sum") < 100
    assert sum(stat(pool, f"h|retry_hint_error|{ms}") for ms in (5, 10, 25, 50, 100)) == 1


def test_what_is_predicted_is_kept_and_its_error_measured(store):
    beat(store)
    job_id = admitted(store, a_job())
    eta_ms = int(store.client.hget(keys.rq_job(job_id), "penstock_eta_ms"))
    view = store.touch(job_id)
    assert 350 <= eta_ms - view.admitted_ms <= 420
    store.settle(an_ending(claim_one(store).held), "w1")
    assert stat(store, "h|prediction_error|500") == 1


def test_lengths_are_kept_as_text_a_person_can_read(store):
    beat(store)
    end_well(store, "blue", 40)
    fields = store.client.hgetall(keys.tenant("blue"))
    assert fields[b"len_hist"].decode() == "22:8"
    assert json.loads(fields[b"len_mean"]) == 40
