"""Tests of the turns between tenants: claims go by service received, in tokens or in jobs, and by weight."""

import pytest

from shared.jobs.job import Usage
from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, advance_clock, an_ending, claim_one, heartbeat, reconfigure


def run_one(store, *, completion_tokens: int = 20) -> str:
    """Claim one job and settle it; return its tenant."""
    job = claim_one(store)
    store.settle(an_ending(job.held, usage=Usage(10, 0, completion_tokens)), "w1")
    return job.tenant


def service_mwt_of(store, tenant: str) -> int:
    return int(store.client.hget(keys.tenant(tenant), keys.service_field(MODEL)) or 0)


@pytest.mark.parametrize("fairness", ["tokens", "turns"])
@pytest.mark.parametrize("true_tokens", [1, 20, 500])
def test_equal_jobs_of_three_tenants_take_exact_turns_in_one_slot(store, settings, fairness, true_tokens):
    """The estimate is 20 generated tokens for each job; the true cost may differ, but it is the same for all jobs."""
    reconfigure(store, settings, fairness=fairness)
    heartbeat(store)
    for tenant in ("c", "a", "b"):
        for _ in range(10):
            admitted(store, a_job(tenant))
    order = [run_one(store, completion_tokens=true_tokens) for _ in range(30)]
    assert "".join(order) == "cab" * 10


@pytest.mark.parametrize("names", ["abcd", "dcba", "bdac"])
@pytest.mark.parametrize("fairness", ["tokens", "turns"])
def test_of_newcomers_the_one_that_came_first_goes_first_whatever_their_names(store, settings, fairness, names):
    reconfigure(store, settings, fairness=fairness)
    heartbeat(store)
    for tenant in names[:3]:
        admitted(store, a_job(tenant))
    order = [claim_one(store).tenant]
    admitted(store, a_job(names[3]))
    order += [claim_one(store).tenant for _ in range(3)]
    assert "".join(order) == names


@pytest.mark.parametrize("fairness", ["tokens", "turns"])
def test_equal_jobs_take_turns_when_several_are_claimed_before_one_ends(store, settings, fairness):
    reconfigure(store, settings, fairness=fairness)
    heartbeat(store)
    for tenant in ("a", "b", "c"):
        for _ in range(4):
            admitted(store, a_job(tenant))
    claims = [store.claim("w1", f"c{i}", MODEL, room=4, cells_free=4_096) for i in range(3)]
    assert "".join(job.tenant for jobs in claims for job in jobs) == "abc" * 4


def test_service_is_measured_in_tokens_and_not_in_jobs(store):
    heartbeat(store)
    for _ in range(3):
        admitted(store, a_job("a", cost_mwt=300_000))
    for _ in range(9):
        admitted(store, a_job("b", cost_mwt=100_000))
    order = "".join(claim_one(store).tenant for _ in range(12))
    assert order == "abbbabbbabbb"


def test_turns_fairness_charges_one_turn_for_a_job_whatever_it_costs(store, settings):
    reconfigure(store, settings, fairness="turns")
    heartbeat(store)
    for _ in range(4):
        admitted(store, a_job("a", cost_mwt=300_000))
        admitted(store, a_job("b", cost_mwt=1_000))
    order = "".join(run_one(store, completion_tokens=50) for _ in range(8))
    assert order == "abababab"
    # b came after a, so it began a thousandth of a turn behind.
    assert (service_mwt_of(store, "a"), service_mwt_of(store, "b")) == (4_000, 4_001)


def test_a_tenant_with_twice_the_weight_gets_twice_the_jobs(store):
    heartbeat(store)
    store.client.hset(keys.tenant("a"), mapping={"policy": 1, "policy_weight_milli": 2_000})
    for _ in range(8):
        admitted(store, a_job("a"))
    for _ in range(4):
        admitted(store, a_job("b"))
    order = "".join(run_one(store) for _ in range(12))
    assert order.count("a") == 8
    assert all(order[:end].count("a") <= 2 * order[:end].count("b") + 2 for end in range(12))
    assert all(order[:end].count("b") <= order[:end].count("a") / 2 + 1 for end in range(12))
    assert service_mwt_of(store, "a") + 1 == service_mwt_of(store, "b")


def test_settling_replaces_the_estimated_charge_by_the_true_cost(store):
    heartbeat(store)
    admitted(store, a_job(cost_mwt=1_000_000))
    job = claim_one(store)
    assert service_mwt_of(store, "blue") == 1_000_000
    store.settle(an_ending(job.held, usage=Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=20)), "w1")
    assert service_mwt_of(store, "blue") == (10 - 4 + 4 * 20) * 1_000


def test_the_weight_of_a_generated_token_is_a_setting(store, settings):
    reconfigure(store, settings, generated_weight=2)
    heartbeat(store)
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 20)), "w1")
    assert service_mwt_of(store, "blue") == (10 + 2 * 20) * 1_000


def test_a_newcomer_gets_no_credit_for_the_time_before_it_came(store):
    """a has received ten jobs. b joins now, starts at the service where a's last job began, and takes turns."""
    heartbeat(store)
    for _ in range(16):
        admitted(store, a_job("a"))
    for _ in range(10):
        run_one(store)
    for _ in range(3):
        admitted(store, a_job("b"))
    assert "".join(run_one(store) for _ in range(6)) in {"bababa", "bbabaa"}


def test_an_idle_tenant_keeps_its_debt(store):
    heartbeat(store)
    admitted(store, a_job("a"))
    run_one(store, completion_tokens=100)
    admitted(store, a_job("b"))
    admitted(store, a_job("b"))
    admitted(store, a_job("a"))
    debt_mwt = service_mwt_of(store, "a")
    assert debt_mwt == (10 + 4 * 100) * 1_000
    assert "".join(run_one(store) for _ in range(3)) == "bba"


def test_an_idle_tenant_keeps_no_credit(store):
    """b was idle while a was served; afterwards b does not occupy the slot until it has caught up."""
    heartbeat(store)
    admitted(store, a_job("b"))
    run_one(store)
    for _ in range(12):
        admitted(store, a_job("a"))
    for _ in range(9):
        run_one(store)
    for _ in range(4):
        admitted(store, a_job("b"))
    order = "".join(run_one(store) for _ in range(6))
    assert order.count("b") <= 4
    assert "bbb" not in order


def test_a_lift_in_one_pool_moves_the_tenant_in_no_other(store):
    heartbeat(store)
    heartbeat(store, "w2", model="n")
    for _ in range(3):
        admitted(store, a_job("a"))
        run_one(store)
    admitted(store, a_job("b", model="n"))
    admitted(store, a_job("b"))
    assert store.client.zscore(keys.active(MODEL), "b") == 180_000
    assert store.client.zscore(keys.active("n"), "b") == 0


def test_turns_stay_exact_when_service_has_more_than_fourteen_digits(store):
    heartbeat(store)
    store.client.hset(keys.tenant("a"), keys.service_field(MODEL), 1_234_567_890_123_456)
    store.client.hset(keys.tenant("b"), keys.service_field(MODEL), 1_234_567_890_123_457)
    for tenant in ("a", "b"):
        admitted(store, a_job(tenant, cost_mwt=2))
        admitted(store, a_job(tenant, cost_mwt=2))
    assert "".join(claim_one(store).tenant for _ in range(4)) == "abab"
    assert service_mwt_of(store, "b") == 1_234_567_890_123_461
    assert store.client.hget(keys.books(MODEL), "v") == b"1234567890123459"


def test_a_job_that_expires_in_the_queue_is_never_charged(store):
    heartbeat(store)
    admitted(store, a_job(deadline_ms=100))
    advance_clock(store, 200)
    store.reap()
    assert service_mwt_of(store, "blue") == 0


@pytest.mark.parametrize("weight", ["0", "-5", "0.5", "inf", "heavy"])
def test_an_invalid_weight_counts_as_one_and_stops_no_script(store, weight):
    """An operator may write such a weight by hand; a division by it would stop a claim between its writes."""
    heartbeat(store, facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 1})
    store.client.hset(keys.tenant("blue"), mapping={"policy": "1", "policy_weight_milli": weight})
    for _ in range(2):
        admitted(store, a_job())
    held = claim_one(store).held
    assert service_mwt_of(store, "blue") == 90_000
    heartbeat(store, "w1", held)
    store.settle(an_ending(held), "w1")
    assert service_mwt_of(store, "blue") == 90_000
    assert store.reconcile("blue", MODEL) == 0
