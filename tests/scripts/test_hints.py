"""Tests which offers make an appointment, and when a changed weight counts in predictions."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, reconfigure, refused

#: The rates of a pool that computes 1,000 weighted tokens a second.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
LONGEST_DRAINING_MS = 6_000


@pytest.fixture
def pool(store, settings):
    """A pool with known rates, in which jobs of the tenant `filler` take every slot."""
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
    store.renew(a_heartbeat(slots=4, facts=RATES), [])
    for _ in range(4):
        admitted(store, a_job("filler"))
    assert len(store.claim("w1", "filling", MODEL, room=4, cells_free=4_096)) == 4
    return store


def appointment(store, tenant: str = "blue") -> float | None:
    return store.client.zscore(keys.appointments(MODEL), tenant)


def test_retry_hints_during_a_drain_do_not_grow_with_the_number_of_refusals(pool):
    pool.client.hset(keys.config(), "draining", "1")
    hints = [refused(pool, a_job(cost_mwt=1_000_000)).retry_hint_ms for _ in range(30)]
    assert max(hints) <= LONGEST_DRAINING_MS
    assert appointment(pool) is None


def test_a_refusal_by_the_tenants_own_rate_does_not_move_its_appointment(pool):
    Tenants(pool.client).set("blue", TenantPolicy(rpm=1))
    admitted(pool, a_job(cost_mwt=5_000_000))
    before = appointment(pool)
    for _ in range(10):
        assert refused(pool, a_job(cost_mwt=5_000_000)).reason == "rate_limited"
    assert appointment(pool) == before


def test_a_hopeless_job_makes_no_appointment(pool):
    for _ in range(5):
        assert refused(pool, a_job(prompt_tokens=4_000, deadline_ms=1_000)).hopeless
    assert appointment(pool) is None


def test_a_superseding_job_moves_the_appointment_only_by_the_difference_in_cost(pool):
    admitted(pool, a_job(cost_mwt=500_000, supersede_digest="draft"))
    before = appointment(pool)
    for _ in range(10):
        admitted(pool, a_job(cost_mwt=500_000, supersede_digest="draft"))
    assert appointment(pool) == pytest.approx(before, abs=100)


@pytest.mark.passing_time
def test_a_weight_changed_while_its_tenant_has_queued_jobs_takes_effect_at_the_next_reconcile(pool):
    for tenant in ("blue", "green"):
        admitted(pool, a_job(tenant, cost_mwt=1_000_000))
    # Forget that the filler's jobs, which were predicted to wait for each other, were claimed at once.
    pool.client.hdel(keys.books(MODEL), "wait|b15")

    def eta_ms() -> int:
        return pool.quote(a_job()).eta_ms

    before = eta_ms()
    Tenants(pool.client).set("blue", TenantPolicy(weight=3))
    assert eta_ms() == before
    pool.reconcile("blue", MODEL)
    # blue now has three quarters of the pool instead of half: its 1,000 wt take 1.3 s instead of 2 s.
    assert before - eta_ms() == pytest.approx(2_000 - 1_333, abs=2)
    assert pool.client.hget(keys.books(MODEL), "weight_milli") == b"4000"
