"""claim takes turns across tenants by service received, in tokens or in jobs, and by weight."""

import pytest

from shared.jobs.job import Usage
from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, an_ending, beat, claim_one, reconfigure, shift


def run_one(store, *, completion_tokens: int = 20) -> str:
    """Claim one job and settle it; whose it was."""
    job = claim_one(store)
    store.settle(an_ending(job.held, usage=Usage(10, 0, completion_tokens)), "w1")
    return job.tenant


def served_mwt(store, tenant: str) -> int:
    return int(store.client.hget(keys.tenant(tenant), "service_mwt") or 0)


@pytest.mark.parametrize("fairness", ["tokens", "turns"])
@pytest.mark.parametrize("true_tokens", [1, 20, 500])
def test_equal_jobs_of_three_tenants_take_exact_turns_in_one_slot(store, settings, fairness, true_tokens):
    """The estimate says 20 generated tokens; what the jobs truly cost is the same for all, whatever it is."""
    reconfigure(store, settings, fairness=fairness)
    beat(store)
    for tenant in ("c", "a", "b"):
        for _ in range(10):
            admitted(store, a_job(tenant))
    ran = [run_one(store, completion_tokens=true_tokens) for _ in range(30)]
    assert "".join(ran) == "abc" * 10


@pytest.mark.parametrize("fairness", ["tokens", "turns"])
def test_equal_jobs_take_turns_when_several_are_claimed_before_one_ends(store, settings, fairness):
    reconfigure(store, settings, fairness=fairness)
    beat(store)
    for tenant in ("a", "b", "c"):
        for _ in range(4):
            admitted(store, a_job(tenant))
    claims = [store.claim("w1", f"c{i}", MODEL, room=4, cells_free=4_096) for i in range(3)]
    assert "".join(job.tenant for jobs in claims for job in jobs) == "abc" * 4


def test_a_tenant_is_served_by_tokens_and_not_by_jobs(store):
    beat(store)
    for _ in range(3):
        admitted(store, a_job("a", cost_mwt=300_000))
    for _ in range(9):
        admitted(store, a_job("b", cost_mwt=100_000))
    ran = "".join(claim_one(store).tenant for _ in range(12))
    assert ran == "abbbabbbabbb"


def test_in_turns_a_job_is_a_turn_whatever_it_costs(store, settings):
    reconfigure(store, settings, fairness="turns")
    beat(store)
    for _ in range(4):
        admitted(store, a_job("a", cost_mwt=300_000))
        admitted(store, a_job("b", cost_mwt=1_000))
    ran = "".join(run_one(store, completion_tokens=50) for _ in range(8))
    assert ran == "abababab"
    assert served_mwt(store, "a") == served_mwt(store, "b") == 4_000


def test_a_tenant_of_twice_the_weight_gets_twice_the_jobs(store):
    beat(store)
    store.client.hset(keys.tenant("a"), mapping={"policy": 1, "policy_weight_milli": 2_000})
    for _ in range(8):
        admitted(store, a_job("a"))
    for _ in range(4):
        admitted(store, a_job("b"))
    ran = "".join(run_one(store) for _ in range(12))
    assert ran.count("a") == 8
    assert all(ran[:end].count("a") <= 2 * ran[:end].count("b") + 2 for end in range(12))
    assert all(ran[:end].count("b") <= ran[:end].count("a") / 2 + 1 for end in range(12))
    assert served_mwt(store, "a") == served_mwt(store, "b")


def test_settling_makes_the_estimate_true(store):
    beat(store)
    admitted(store, a_job(cost_mwt=1_000_000))
    job = claim_one(store)
    assert served_mwt(store, "blue") == 1_000_000
    store.settle(an_ending(job.held, usage=Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=20)), "w1")
    assert served_mwt(store, "blue") == (10 - 4 + 4 * 20) * 1_000


def test_the_weight_of_a_generated_token_is_a_setting(store, settings):
    reconfigure(store, settings, generated_weight=2)
    beat(store)
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 20)), "w1")
    assert served_mwt(store, "blue") == (10 + 2 * 20) * 1_000


def test_a_newcomer_is_not_owed_the_time_before_it_came(store):
    """a was served ten jobs; b, who comes now, starts where a's last job began and takes turns from there."""
    beat(store)
    for _ in range(16):
        admitted(store, a_job("a"))
    for _ in range(10):
        run_one(store)
    for _ in range(3):
        admitted(store, a_job("b"))
    assert "".join(run_one(store) for _ in range(6)) in {"bababa", "bbabaa"}


def test_an_idle_tenant_keeps_its_debt(store):
    beat(store)
    admitted(store, a_job("a"))
    run_one(store, completion_tokens=100)
    admitted(store, a_job("b"))
    admitted(store, a_job("b"))
    admitted(store, a_job("a"))
    debt_mwt = served_mwt(store, "a")
    assert debt_mwt == (10 + 4 * 100) * 1_000
    assert "".join(run_one(store) for _ in range(3)) == "bba"


def test_an_idle_tenant_keeps_no_credit(store):
    """b was idle while a was served; it does not then hold the slot until it has caught up."""
    beat(store)
    admitted(store, a_job("b"))
    run_one(store)
    for _ in range(12):
        admitted(store, a_job("a"))
    for _ in range(9):
        run_one(store)
    for _ in range(4):
        admitted(store, a_job("b"))
    ran = "".join(run_one(store) for _ in range(6))
    assert ran.count("b") <= 4
    assert "bbb" not in ran


def test_a_lift_moves_a_tenant_in_every_list_where_it_waits(store):
    beat(store)
    beat(store, "w2", model="n")
    for _ in range(3):
        admitted(store, a_job("a"))
        run_one(store)
    admitted(store, a_job("b", model="n"))
    admitted(store, a_job("b"))
    assert store.client.zscore(keys.active(MODEL), "b") == store.client.zscore(keys.active("n"), "b")


def test_charges_beyond_fourteen_digits_keep_turns_exact(store):
    beat(store)
    store.client.hset(keys.tenant("a"), "service_mwt", 1_234_567_890_123_456)
    store.client.hset(keys.tenant("b"), "service_mwt", 1_234_567_890_123_457)
    for tenant in ("a", "b"):
        admitted(store, a_job(tenant, cost_mwt=2))
        admitted(store, a_job(tenant, cost_mwt=2))
    assert "".join(claim_one(store).tenant for _ in range(4)) == "abab"
    assert served_mwt(store, "b") == 1_234_567_890_123_461
    assert store.client.hget(keys.books(MODEL), "v") == b"1234567890123459"


def test_what_expires_while_waiting_was_never_charged(store):
    beat(store)
    admitted(store, a_job(deadline_ms=100))
    shift(store, 200)
    store.reap()
    assert served_mwt(store, "blue") == 0


@pytest.mark.parametrize("spoiled", ["0", "-5", "0.5", "inf", "heavy"])
def test_a_weight_that_no_policy_may_have_counts_as_one_and_stops_nobody(store, spoiled):
    """As somebody may write it by hand; a division by it would end a claim between its writes."""
    beat(store, facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 1})
    store.client.hset(keys.tenant("blue"), mapping={"policy": "1", "policy_weight_milli": spoiled})
    for _ in range(2):
        admitted(store, a_job())
    held = claim_one(store).held
    assert served_mwt(store, "blue") == 90_000
    beat(store, "w1", held)
    store.settle(an_ending(held), "w1")
    assert served_mwt(store, "blue") == 90_000
    assert store.reconcile("blue", MODEL) == 0
