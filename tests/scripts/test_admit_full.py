"""Tests of full admission: each of its checks alone, the retry hints and the predictions."""

import json
from itertools import pairwise

import pytest

from shared.jobs.job import Usage
from shared.jobs.outcomes import Outcome, Refused
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    hold_clock,
    reconfigure,
    refused,
    stat,
)

#: A pool of 4 slots that computes 1,000 weighted tokens a second: 8 s of work are 8,000 weighted tokens.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


@pytest.fixture
def pool(store, settings):
    """A pool with known rates and high bounds. Jobs of the tenant `filler` take every slot, and time stands still."""
    hold_clock(store)
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
    heartbeat(store)
    for _ in range(4):
        admitted(store, a_job("filler"))
    assert len(store.claim("w1", "filling", MODEL, room=4, cells_free=4_096)) == 4
    return store


def heartbeat(store, **rates):
    store.renew(a_heartbeat(slots=4, facts=RATES | rates), [])


def work(tenant: str, wt: int, **overrides):
    """Return a job that costs `wt` weighted tokens."""
    return a_job(tenant, cost_mwt=1_000 * wt, **overrides)


def complete_jobs(store, tenant: str, tokens: int, times: int = 8) -> None:
    """Run `times` jobs of the tenant to success, each with an answer of `tokens` tokens."""
    for _ in range(times):
        admitted(store, a_job(tenant, max_tokens=10_000, deadline_ms=600_000))
        held = claim_one(store).held
        store.settle(an_ending(held, usage=Usage(10, 0, tokens, 1, 1, 1)), "w1")


def test_the_queued_work_allowed_for_a_tenant_shrinks_as_the_pool_fills(pool):
    admitted(pool, work("blue", 3_000))
    # blue is the only tenant, so its threshold is all that is free: 8,000 less its own 3,000.
    answer = refused(pool, work("blue", 3_000))
    assert (answer.reason, answer.limit) == ("tenant_share_full", "tenant_waiting_work")
    assert (answer.value, answer.max) == (3_000, 5_000)
    admitted(pool, work("blue", 1_000))
    admitted(pool, work("green", 3_000))
    assert refused(pool, work("green", 10)).reason == "tenant_share_full"


def test_a_tenants_weight_scales_its_threshold(pool):
    pool.client.hset(keys.tenant("blue"), mapping={"policy": "1", "policy_weight_milli": "3000"})
    pool.client.zadd(keys.tenants(), {"blue": 1})
    admitted(pool, work("green", 1_000))
    admitted(pool, work("blue", 1_000))
    # 6,000 are free: green's quarter of them is 1,500, and blue's three quarters are 4,500.
    assert refused(pool, work("green", 600)).max == 1_500
    admitted(pool, work("blue", 3_400))


def test_a_full_backlog_refuses_even_a_newcomer(pool):
    for name in ("a", "b", "c"):
        admitted(pool, work(name, 3_400))
    # 10,200 are queued, which is more than 8,000 and a quarter of it: even a tenant with no queued job is refused.
    answer = refused(pool, work("late", 10))
    assert (answer.reason, answer.value, answer.max) == ("backlog_full", 10_200, 8_000)
    assert answer.retry_hint_ms >= 200


def test_a_newcomer_is_admitted_until_the_backlog_exceeds_its_bound_by_a_quarter(pool):
    for name in ("a", "b"):
        admitted(pool, work(name, 4_500))
    admitted(pool, work("late", 10))


def test_two_mean_jobs_of_each_tenant_may_wait_however_slow_the_pool_is(pool):
    pool.client.hset(keys.books(MODEL), "mean_mwt", 6_000_000)
    for name in ("a", "b"):
        admitted(pool, work(name, 6_000))
    # 12,000 are queued. 8 s of work and a quarter of it are 10,000, but two mean jobs of two tenants are 24,000.
    admitted(pool, work("late", 10))


def test_a_newcomer_may_queue_one_job_of_any_cost(pool):
    admitted(pool, work("huge", 1_000_000, deadline_ms=600_000))


def test_a_job_whose_answer_cannot_be_ready_in_time_is_refused(pool):
    # 20 tokens of 20 ms each and a prompt of 10 ms take 410 ms; four fifths of 500 ms are 400 ms.
    answer = refused(pool, a_job(deadline_ms=500))
    assert (answer.reason, answer.value, answer.max) == ("deadline_unmeetable", 410, 400)
    assert not answer.hopeless
    assert answer.answer_ms == 410
    admitted(pool, a_job(deadline_ms=600))


def test_queued_work_ahead_of_a_job_counts_against_its_deadline(pool):
    admitted(pool, work("blue", 2_000))
    # Both tenants are new, and blue's job came first, so it runs first.
    assert refused(pool, work("green", 1_000, deadline_ms=1_000)).value == 1_410
    admitted(pool, work("green", 1_000, deadline_ms=2_000))
    assert refused(pool, work("blue", 100, deadline_ms=3_000)).reason == "deadline_unmeetable"
    admitted(pool, work("blue", 100, deadline_ms=30_000))


def test_the_wait_for_a_slot_counts_against_the_deadline_when_all_slots_are_taken(pool):
    pool.client.hset(keys.books(MODEL), "run_ms", 4_000)
    # One of 4 slots becomes free each second: the job takes 1,410 ms; four fifths of 1,700 ms are 1,360 ms.
    assert refused(pool, a_job(deadline_ms=1_700)).value == 1_410
    admitted(pool, a_job(deadline_ms=1_800))


def test_with_a_slot_left_by_the_queued_jobs_the_whole_time_to_the_deadline_may_be_used(store):
    heartbeat(store)
    for _ in range(4):
        admitted(store, a_job(deadline_ms=420))
    assert refused(store, a_job(deadline_ms=420)).reason == "deadline_unmeetable"


def test_a_job_that_even_an_idle_pool_could_not_finish_in_time_is_hopeless(store):
    heartbeat(store)
    complete_jobs(store, "blue", 20)
    assert refused(store, a_job(deadline_ms=300)).hopeless


def test_rates_that_no_answer_has_confirmed_for_a_minute_refuse_all_but_one_job_of_an_empty_pool(store):
    """Rates that were measured on a machine without time to spare would otherwise refuse every job for ever."""
    heartbeat(store, mu_wtps=10, prefill_tps=10, tpot_ms=2_000)
    probe = admitted(store, a_job(deadline_ms=3_000))
    assert refused(store, a_job("green", deadline_ms=3_000)).reason == "deadline_unmeetable"
    held = claim_one(store).held
    assert held.id == probe
    assert refused(store, a_job("green", deadline_ms=3_000)).reason == "deadline_unmeetable"
    store.settle(an_ending(held, Outcome.EXPIRED), "w1")
    second = admitted(store, a_job(deadline_ms=3_000))
    store.settle(an_ending(claim_one(store).held), "w1")
    assert second != probe
    assert refused(store, a_job(deadline_ms=3_000)).hopeless, "the rates are confirmed"
    advance_clock(store, 60_001)
    heartbeat(store, mu_wtps=10, prefill_tps=10, tpot_ms=2_000)
    admitted(store, a_job(deadline_ms=3_000))


def test_a_job_whose_prompt_alone_takes_longer_than_its_start_deadline_is_hopeless(pool):
    assert refused(pool, a_job(prompt_tokens=1_000, start_within_ms=900)).hopeless
    assert not refused(pool, a_job(prompt_tokens=1_000, start_within_ms=1_000)).hopeless


def test_a_job_that_cannot_start_before_its_start_deadline_is_refused(pool):
    admitted(pool, work("blue", 3_000))
    assert refused(pool, work("blue", 10, start_within_ms=2_000)).reason == "deadline_unmeetable"
    admitted(pool, work("blue", 10, start_within_ms=20_000))


def test_the_deadline_check_uses_the_tenants_median_answer_length(pool):
    assert refused(pool, a_job("long", max_tokens=1_000, deadline_ms=2_500)).reason == "deadline_unmeetable"
    complete_jobs(pool, "brief", 10)
    admitted(pool, a_job("brief", max_tokens=1_000, deadline_ms=2_500))


def test_the_deadline_check_uses_shorter_answers_for_a_tenant_under_its_share(pool):
    complete_jobs(pool, "mixed", 10, times=3)
    complete_jobs(pool, "mixed", 1_000, times=5)
    admitted(pool, work("green", 10))
    admitted(pool, work("mixed", 1_000, max_tokens=2_000, deadline_ms=9_000))
    answer = refused(pool, work("mixed", 10, max_tokens=2_000, deadline_ms=9_000))
    assert (answer.reason, answer.value > 20_000) == ("deadline_unmeetable", True)


def test_costs_are_estimated_from_eight_answers_and_never_exceed_max_tokens(store):
    heartbeat(store)
    before = admitted(store, a_job(max_tokens=1_000, cost_mwt=None))
    assert store.client.hget(keys.rq_job(before), "penstock_cost_mwt") == b"522000"
    store.cancel(before)
    complete_jobs(store, "blue", 40)
    learned = admitted(store, a_job(max_tokens=1_000, cost_mwt=None))
    assert store.client.hget(keys.rq_job(learned), "penstock_cost_mwt") == b"170000"
    brief = admitted(store, a_job(max_tokens=5, cost_mwt=None))
    assert store.client.hget(keys.rq_job(brief), "penstock_cost_mwt") == b"30000"
    other = admitted(store, a_job("new", max_tokens=1_000, cost_mwt=None))
    assert store.client.hget(keys.rq_job(other), "penstock_cost_mwt") == b"170000"


@pytest.mark.parametrize("bad_rate", [{"mu_wtps": 0}, {"prefill_tps": -1}, {"tpot_ms": 0}])
def test_no_job_is_refused_by_prediction_while_a_rate_is_unknown(store, bad_rate):
    heartbeat(store, **bad_rate)
    admitted(store, a_job(deadline_ms=1))


def test_bounds_admission_refuses_no_job_by_prediction(store, settings):
    reconfigure(store, settings, admission="bounds")
    heartbeat(store)
    admitted(store, a_job(deadline_ms=1))


def test_rates_older_than_ten_seconds_are_ignored(store):
    heartbeat(store)
    complete_jobs(store, "blue", 20)
    assert isinstance(store.admit(a_job(deadline_ms=300)), Refused)
    advance_clock(store, 10_001)
    store.renew(a_heartbeat(slots=4), [])
    store.client.hdel(keys.worker("w1"), "mu_wtps")
    assert isinstance(store.admit(a_job(deadline_ms=300)), Refused)
    store.client.hset(keys.books(MODEL), "rates_ms", 0)
    assert isinstance(store.admit(a_job(deadline_ms=300)), Admitted)


def test_a_flooding_tenants_appointments_move_later_and_do_not_delay_other_tenants(pool, settings):
    reconfigure(pool, settings, max_inflight=5, max_queue_size=100)
    admitted(pool, work("flood", 1_000))
    flood = [refused(pool, work("flood", 1_000)).retry_hint_ms for _ in range(6)]
    # Each hint is longer than its wait by up to a fifth.
    assert all(later > earlier / 1.2 for earlier, later in pairwise(flood))
    assert flood[-1] > 4_000 > flood[0]
    assert refused(pool, work("light", 100)).retry_hint_ms < 1_500


def test_a_tenants_running_work_moves_its_appointment_later(pool, settings):
    """The appointment counts all the work that the tenant offered, less its queued work: running jobs count."""
    for _ in range(2):
        admitted(pool, work("flood", 2_000))
    assert len(pool.claim("w1", "more", MODEL, room=2, cells_free=4_096)) == 2
    reconfigure(pool, settings, max_inflight=6)
    # None of the 4,000 wt admitted and the 1,000 wt offered now is queued: the pool needs 5 s for them.
    assert 4_500 <= refused(pool, work("flood", 1_000)).retry_hint_ms <= 6_000
    assert refused(pool, work("light", 1_000)).retry_hint_ms <= 1_200


def test_a_tenants_queued_work_does_not_move_its_appointment_later(pool, settings):
    admitted(pool, work("flood", 2_000))
    reconfigure(pool, settings, max_inflight=5)
    assert 1_000 <= refused(pool, work("flood", 1_000)).retry_hint_ms <= 1_200


def test_an_appointment_is_at_most_a_minute_ahead(pool, settings):
    reconfigure(pool, settings, max_inflight=4)
    for _ in range(5):
        refused(pool, work("flood", 50_000))
    advance_clock(pool, 61_000)
    heartbeat(pool)
    assert refused(pool, work("flood", 100)).retry_hint_ms < 1_000


def test_the_same_job_refused_twice_makes_one_appointment(pool, settings):
    reconfigure(pool, settings, max_inflight=4)
    job = work("blue", 1_000)
    refused(pool, job)
    appointment = pool.client.zscore(keys.appointments(MODEL), "blue")
    refused(pool, job)
    assert pool.client.zscore(keys.appointments(MODEL), "blue") == appointment


def test_a_retry_before_the_appointment_does_not_move_the_appointment(pool, settings):
    reconfigure(pool, settings, max_inflight=4)
    refused(pool, work("blue", 1_000))
    appointment = pool.client.zscore(keys.appointments(MODEL), "blue")
    refused(pool, work("blue", 1_000), attempt=1)
    assert pool.client.zscore(keys.appointments(MODEL), "blue") == appointment
    refused(pool, work("blue", 1_000))
    assert pool.client.zscore(keys.appointments(MODEL), "blue") > appointment


def test_the_eta_is_stored_and_its_error_is_measured(store):
    heartbeat(store)
    job_id = admitted(store, a_job())
    eta_ms = int(store.client.hget(keys.rq_job(job_id), "penstock_eta_ms"))
    view = store.touch(job_id)
    assert 350 <= eta_ms - view.admitted_ms <= 420
    store.settle(an_ending(claim_one(store).held), "w1")
    assert stat(store, "h|end_prediction_error|early|500") == 1


def test_answer_lengths_are_stored_as_readable_text(store):
    heartbeat(store)
    complete_jobs(store, "blue", 40)
    fields = store.client.hgetall(keys.tenant("blue"))
    assert fields[b"len_hist"].decode() == "22:8"
    assert json.loads(fields[b"len_mean"]) == 40
