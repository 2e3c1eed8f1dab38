"""Tests of admission with priorities: what batch jobs count for, and that they make no other job too late."""

import pytest

from shared.jobs.outcomes import Refused
from shared.store import keys
from shared.store.replies import Admitted
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, claim, reconfigure, refused

#: A pool of 4 slots that computes 1,000 weighted tokens a second: 8 s of work are 8,000 weighted tokens.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


@pytest.fixture
def pool(store, settings):
    """A pool with known rates, in which jobs of the tenant `filler` take every slot."""
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
    store.renew(a_heartbeat(slots=4, facts=RATES), [])
    for _ in range(4):
        admitted(store, a_job("filler"))
    assert len(claim(store, room=4)) == 4
    return store


def work(tenant: str, wt: int, priority: int = 0, **overrides):
    """Return a job that costs `wt` weighted tokens."""
    return a_job(tenant, cost_mwt=1_000 * wt, priority=priority, **overrides)


def flood(store, tenant: str) -> Refused:
    """Offer batch jobs of the tenant until one is refused; return the refusal."""
    while isinstance(answer := store.admit(work(tenant, 500, -1, deadline_ms=600_000)), Admitted):
        pass
    return answer


def eta_ms(store, tenant: str, priority: int = 0) -> int:
    quote = store.quote(a_job(tenant, priority=priority))
    assert quote.eta_ms is not None
    return quote.eta_ms


@pytest.mark.parametrize("tenant", ["blue", "green"])
def test_a_flood_of_batch_jobs_changes_neither_the_eta_nor_the_verdict_of_other_jobs(pool, tenant):
    before = eta_ms(pool, tenant)
    assert flood(pool, "blue").reason == "tenant_share_full"
    assert eta_ms(pool, tenant) == before
    admitted(pool, work(tenant, 4_000, deadline_ms=1_000))
    admitted(pool, work("late", 3_000, deadline_ms=10_000))


def test_a_batch_job_is_predicted_to_wait_for_all_other_work(pool):
    before = eta_ms(pool, "blue", -1)
    admitted(pool, work("red", 3_000))
    assert eta_ms(pool, "blue", -1) == before + 3_000
    assert eta_ms(pool, "blue") < before + 3_000
    assert refused(pool, work("blue", 100, -1, deadline_ms=3_000)).reason == "deadline_unmeetable"
    admitted(pool, work("blue", 100, deadline_ms=3_000))


def test_batch_jobs_count_in_the_bounds_on_what_the_store_holds(pool, settings):
    reconfigure(pool, settings, max_inflight=1_000, max_queue_size=2)
    for _ in range(2):
        admitted(pool, work("blue", 1, -1))
    assert refused(pool, work("blue", 1)).reason == "tenant_queue_full"
    admitted(pool, work("green", 1))


def test_a_batch_job_uses_no_place_that_is_kept_for_tenants_with_little_work(pool, settings):
    reconfigure(pool, settings, max_inflight=8, max_queue_size=100)
    admitted(pool, work("blue", 1, -1))
    admitted(pool, work("blue", 1, -1))
    # Six of eight places are taken, and the other two are kept.
    assert refused(pool, work("green", 1, -1)).reason == "inflight_full"
    admitted(pool, work("green", 1))
    assert refused(pool, work("green", 1, 1)).reason == "inflight_full"


def test_other_work_counts_for_a_batch_job_as_for_any_job(pool):
    admitted(pool, work("green", 4_500))
    admitted(pool, work("red", 4_500))
    admitted(pool, work("late", 10, -1, deadline_ms=600_000))
    admitted(pool, work("later", 2_000))
    assert refused(pool, work("latest", 10, -1, deadline_ms=600_000)).reason == "backlog_full"


def test_a_refused_batch_job_neither_reserves_nor_delays_the_hints_of_its_tenants_other_jobs(pool):
    admitted(pool, work("blue", 4_000))
    hint_ms = refused(pool, work("blue", 4_000, id="first")).retry_hint_ms
    pool.client.delete(keys.appointments(MODEL), keys.reservations(MODEL), keys.asked())
    for i in range(20):
        answer = refused(pool, work("blue", 4_000, -1, id=f"batch{i}", body_digest="0123456789abcdef" * 4))
        assert answer.retry_ms == 0
    assert not pool.client.exists(keys.reservations(MODEL))
    assert refused(pool, work("blue", 4_000, id="first")).retry_hint_ms == hint_ms


def test_a_job_that_supersedes_a_batch_job_is_checked_without_it(pool, settings):
    reconfigure(pool, settings, max_inflight=1_000, max_queue_size=1)
    admitted(pool, work("blue", 1_000, -1, supersede_digest="draft"))
    admitted(pool, work("blue", 1_000, supersede_digest="draft"))
    admitted(pool, work("blue", 1_000, -1, supersede_digest="draft", deadline_ms=600_000))


def test_a_tenant_that_has_only_batch_jobs_queued_is_a_newcomer_for_its_other_jobs(pool):
    """Its threshold and its share count as if it had nothing queued: the first of these jobs may have any cost."""
    for name in ("red", "green"):
        admitted(pool, work(name, 3_000))
    admitted(pool, work("blue", 500, -1, deadline_ms=600_000))
    admitted(pool, work("blue", 10_000, deadline_ms=600_000))
