"""Tests of the automatic bound on the work that a tenant may have queued (PENSTOCK_MAX_QUEUE_TOKENS=auto)."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.outcomes import Refusal
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, claim_one, reconfigure, refused

#: A pool of 4 slots that computes 1,000 weighted tokens a second: 8 s of work are 8,000 weighted tokens.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def heartbeat(store, model=MODEL, worker="w1", **rates):
    store.renew(a_heartbeat(worker, slots=4, model=model, facts=rates), [])


def busy_pool(store, model=MODEL, worker="w1", **rates):
    """Let jobs of another tenant take all slots of a pool: what fits into free slots is not bounded."""
    heartbeat(store, model, worker, **rates)
    for _ in range(4):
        admitted(store, a_job("filler", model=model))
    assert len(store.claim(worker, f"filling {model}", model, room=4, cells_free=4_096)) == 4


def work(tenant: str, wt: int, **overrides):
    """Return a job that costs `wt` weighted tokens."""
    return a_job(tenant, cost_mwt=1_000 * wt, **overrides)


@pytest.mark.parametrize("admission", ["full", "bounds"])
def test_a_large_max_tokens_that_answers_do_not_use_refuses_nobody(store, settings, clock, admission):
    """80 jobs with max_tokens 1,024 are 82,720 requested tokens, but only 4,000 weighted tokens of expected work."""
    reconfigure(store, settings, admission=admission, max_inflight=1_000, max_queue_size=100)
    heartbeat(store, **RATES)
    for _ in range(80):
        admitted(store, work("blue", 50, max_tokens=1_024))


def test_with_known_rates_a_tenant_may_queue_what_the_pool_can_do_in_the_longest_wait(store, settings):
    reconfigure(store, settings, admission="bounds")
    busy_pool(store, **RATES)
    admitted(store, work("blue", 7_000))
    answer = refused(store, work("blue", 1_001))
    assert (answer.reason, answer.limit) == (Refusal.TENANT_TOKENS_FULL, "tenant_waiting_work")
    assert (answer.value, answer.max) == (7_000, 8_000)
    admitted(store, work("blue", 1_000))
    admitted(store, work("green", 8_000))


def test_the_retry_hint_is_the_time_in_which_the_tenants_share_does_the_excess(store, settings):
    reconfigure(store, settings, admission="bounds")
    busy_pool(store, **RATES)
    admitted(store, work("green", 100))
    admitted(store, work("blue", 8_000))
    # 3,000 too many for a tenant that gets half of 1,000 a second.
    assert 6_000 <= refused(store, work("blue", 3_000)).retry_hint_ms <= 7_200


def test_running_jobs_are_not_counted(store, settings):
    reconfigure(store, settings, admission="bounds")
    heartbeat(store, **RATES)
    admitted(store, work("blue", 8_000))
    claim_one(store)
    admitted(store, work("blue", 8_000))


def test_each_pool_has_a_bound_of_its_own(store, settings):
    reconfigure(store, settings, admission="bounds")
    busy_pool(store, **RATES)
    busy_pool(store, "n", "w2", **(RATES | {"mu_wtps": 100}))
    admitted(store, work("blue", 8_000))
    admitted(store, work("blue", 700, model="n"))
    assert refused(store, work("blue", 101, model="n")).max == 800


def test_a_slow_pool_still_queues_two_mean_jobs_of_each_tenant(store, settings):
    reconfigure(store, settings, admission="bounds")
    busy_pool(store, **(RATES | {"mu_wtps": 1}))
    store.client.hset(keys.books(MODEL), "mean_mwt", 300_000)
    for tenant in ("a", "b"):
        admitted(store, work(tenant, 300))
        admitted(store, work(tenant, 300))
        assert refused(store, work(tenant, 1)).max == 600


def test_a_heavy_tenant_may_queue_its_part_of_two_mean_jobs_of_each_tenant(store, settings):
    Tenants(store.client).set("heavy", TenantPolicy(weight=3))
    reconfigure(store, settings, admission="bounds")
    busy_pool(store, **(RATES | {"mu_wtps": 1}))
    store.client.hset(keys.books(MODEL), "mean_mwt", 300_000)
    admitted(store, work("light", 1))
    admitted(store, work("heavy", 1))
    # Three quarters of the work of two mean jobs of two tenants.
    assert refused(store, work("heavy", 900)).max == 900


def test_in_full_admission_the_tenants_share_is_the_only_bound_on_its_work(store):
    busy_pool(store, **RATES)
    admitted(store, work("blue", 7_000))
    assert refused(store, work("blue", 2_000)).reason is Refusal.TENANT_SHARE_FULL


@pytest.mark.parametrize("admission", ["full", "bounds"])
def test_without_rates_a_tenant_may_queue_as_much_work_as_its_bound_on_jobs_allows_for_mean_jobs(
    store, settings, admission
):
    reconfigure(store, settings, admission=admission)
    busy_pool(store)
    store.client.hset(keys.books(MODEL), "mean_mwt", 10_000_000)
    admitted(store, work("blue", 150_000))
    answer = refused(store, work("blue", 10_001))
    assert (answer.reason, answer.value, answer.max) == (Refusal.TENANT_TOKENS_FULL, 150_000, 160_000)
    admitted(store, work("blue", 10_000))


def test_without_rates_small_mean_jobs_leave_room_for_large_ones(store):
    busy_pool(store)
    store.client.hset(keys.books(MODEL), "mean_mwt", 5_000)
    admitted(store, work("blue", 60_000))
    assert refused(store, work("blue", 5_537)).max == 65_536
    admitted(store, work("blue", 5_536))


@pytest.mark.parametrize("rates", [{}, RATES])
@pytest.mark.parametrize("admission", ["full", "bounds"])
def test_a_tenant_with_nothing_queued_may_queue_one_job_of_any_size(store, settings, rates, admission):
    reconfigure(store, settings, admission=admission)
    heartbeat(store, **rates)
    heartbeat(store, "n", "w2", **rates)
    admitted(store, work("blue", 10_000_000, model="n", deadline_ms=600_000))
    admitted(store, work("blue", 10_000_000, deadline_ms=600_000))


def test_a_number_in_a_policy_still_bounds_the_requested_tokens(store):
    Tenants(store.client).set("blue", TenantPolicy(max_waiting_tokens=1_000))
    heartbeat(store, **RATES)
    admitted(store, work("blue", 50, max_tokens=900))
    answer = refused(store, work("blue", 50, max_tokens=900))
    assert (answer.limit, answer.value, answer.max) == ("tenant_waiting_tokens", 910, 1_000)
    for _ in range(2):
        admitted(store, work("green", 50, max_tokens=900))


@pytest.mark.parametrize("stored", ["many", "0", "-5", "1e300", "nan"])
def test_a_setting_that_another_program_spoiled_counts_as_auto(store, settings, stored):
    reconfigure(store, settings, admission="bounds")
    store.client.hset(keys.config(), "max_queue_tokens", stored)
    busy_pool(store, **RATES)
    admitted(store, work("blue", 8_000))
    assert refused(store, work("blue", 1)).limit == "tenant_waiting_work"
