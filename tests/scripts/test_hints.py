"""What makes an appointment and what does not, and whose weight counts while its tenant waits."""

import pytest

from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.tenants import Tenants
from tests.support.builders import MODEL, a_beat, a_job, admitted, reconfigure, refused

#: 4 slots that do 1,000 weighted tokens a second.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}
LONGEST_DRAINING_MS = 6_000


@pytest.fixture
def pool(store, settings):
    """A pool with known rates and every slot taken by the tenant `filler`."""
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
    store.renew(a_beat(slots=4, facts=RATES), [])
    for _ in range(4):
        admitted(store, a_job("filler"))
    assert len(store.claim("w1", "filling", MODEL, room=4, cells_free=4_096)) == 4
    return store


def appointment(store, tenant: str = "blue") -> float | None:
    return store.client.zscore(keys.appointments(MODEL), tenant)


def test_a_drain_gives_everybody_the_same_time_to_come_back_however_many_ask(pool):
    pool.client.hset(keys.config(), "draining", "1")
    hints = [refused(pool, a_job(cost_mwt=1_000_000)).retry_hint_ms for _ in range(30)]
    assert max(hints) <= LONGEST_DRAINING_MS
    assert appointment(pool) is None


def test_a_tenant_over_its_own_rate_comes_back_when_the_rate_lets_it(pool):
    Tenants(pool.client).set("blue", TenantPolicy(rpm=1))
    admitted(pool, a_job(cost_mwt=1_000_000))
    booked = appointment(pool)
    for _ in range(10):
        assert refused(pool, a_job(cost_mwt=1_000_000)).reason == "rate_limited"
    assert appointment(pool) == booked


def test_what_even_an_empty_system_could_not_do_makes_no_appointment(pool):
    for _ in range(5):
        assert refused(pool, a_job(prompt_tokens=4_000, deadline_ms=1_000)).hopeless
    assert appointment(pool) is None


def test_a_job_in_place_of_an_older_one_asks_for_the_difference(pool):
    admitted(pool, a_job(cost_mwt=500_000, supersede_digest="draft"))
    booked = appointment(pool)
    for _ in range(10):
        admitted(pool, a_job(cost_mwt=500_000, supersede_digest="draft"))
    assert appointment(pool) == pytest.approx(booked, abs=100)


def test_a_weight_that_changes_while_its_tenant_waits_counts_from_the_next_look_at_its_books(pool):
    for tenant in ("blue", "green"):
        admitted(pool, a_job(tenant, cost_mwt=1_000_000))

    def eta_ms() -> int:
        return pool.quote("blue", MODEL, prompt_tokens=10, max_tokens=20, deadline_ms=60_000).eta_ms

    before = eta_ms()
    Tenants(pool.client).set("blue", TenantPolicy(weight=3))
    assert eta_ms() == before
    pool.reconcile("blue", MODEL)
    # Three quarters of the pool instead of half of it: 1,000 of its weighted tokens in 1.3 s instead of 2.
    assert before - eta_ms() == pytest.approx(2_000 - 1_333, abs=2)
    assert pool.client.hget(keys.books(MODEL), "weight_milli") == b"4000"
