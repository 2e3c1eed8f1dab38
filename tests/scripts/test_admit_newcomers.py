"""Tests of the service at which a newcomer starts: the pool's virtual time, less a known tenant's credit."""

import re
from pathlib import Path

import pytest

import bench.sim.fairness
import shared
from shared.store import keys
from tests.support import model_turns
from tests.support.builders import MODEL, a_job, admitted, heartbeat, pass_time, reconfigure


@pytest.fixture
def pool(store):
    """A pool whose virtual time is 1,000 wt and whose jobs cost 100 wt on average."""
    heartbeat(store)
    store.client.hset(keys.books(MODEL), mapping={"v": 1_000_000, "mean_mwt": 100_000})
    return store


def starting_service_wt(store, tenant: str) -> int:
    """Admit the tenant's first job; return the tenant's service in wt."""
    admitted(store, a_job(tenant))
    return int(store.client.hget(keys.tenant(tenant), keys.service_field(MODEL))) // 1_000


def set_policy(store, tenant: str) -> None:
    store.client.hset(keys.tenant(tenant), "policy", "1")
    store.client.zadd(keys.tenants(), {tenant: 1})


def test_the_model_and_the_simulation_give_the_credit_that_the_scripts_give():
    code = (Path(shared.__file__).parent / "lua/lib/fairness/turns.lua").read_text()
    (jobs, known_ms), *_ = re.findall(r"CREDIT_JOBS, CREDIT_AGE_MS = (\d+), (\d+)", code)
    assert int(jobs) == model_turns.CREDIT_JOBS == bench.sim.fairness.CREDIT_JOBS
    assert int(known_ms) == model_turns.KNOWN_MS


def test_an_unknown_tenant_gets_no_credit(pool):
    assert starting_service_wt(pool, "invented") == 1_000


def test_a_tenant_with_a_policy_starts_two_mean_jobs_below_the_virtual_time(pool):
    set_policy(pool, "blue")
    assert starting_service_wt(pool, "blue") == 800


def test_a_tenant_known_for_a_minute_starts_two_mean_jobs_below_the_virtual_time(pool):
    job_id = admitted(pool, a_job("blue"))
    pool.cancel(job_id)
    pass_time(pool, 61_000, beating="w1")
    pool.client.hset(keys.tenant("blue"), keys.service_field(MODEL), 0)
    assert starting_service_wt(pool, "blue") == 800


def test_a_tenant_with_more_service_than_the_virtual_time_keeps_its_service(pool):
    set_policy(pool, "blue")
    pool.client.hset(keys.tenant("blue"), keys.service_field(MODEL), 5_000_000)
    assert starting_service_wt(pool, "blue") == 5_000


@pytest.mark.parametrize("overrides", [{"fairness": "turns"}, {"admission": "bounds"}])
def test_turns_fairness_and_bounds_admission_give_no_credit(pool, settings, overrides):
    reconfigure(pool, settings, **overrides)
    set_policy(pool, "blue")
    assert starting_service_wt(pool, "blue") == 1_000


@pytest.mark.parametrize(("preemption", "can_pause", "starts_wt"), [("on", 1, 900), ("on", 0, 800), ("off", 1, 800)])
def test_where_jobs_are_paused_a_tenant_starts_no_further_below_than_the_pool_computes_in_a_quantum(
    pool, settings, preemption, can_pause, starts_wt
):
    reconfigure(pool, settings, preemption=preemption, quantum_ms=1_000)
    heartbeat(pool, facts={"can_pause": can_pause, "mu_wtps": 100, "prefill_tps": 100, "tpot_ms": 40})
    set_policy(pool, "blue")
    assert starting_service_wt(pool, "blue") == starts_wt
