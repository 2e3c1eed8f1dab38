"""Where a tenant starts that had nothing waiting: the pool's virtual time less a known tenant's credit."""

import pytest

from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, beat, pass_time, reconfigure


@pytest.fixture
def pool(store):
    """A pool at 1,000 wt of virtual time whose jobs cost 100 on average."""
    beat(store)
    store.client.hset(keys.books(MODEL), mapping={"v": 1_000_000, "mean_mwt": 100_000})
    return store


def starts_at(store, tenant: str) -> int:
    """The tenant's service in wt, after its first job was put into its list."""
    admitted(store, a_job(tenant))
    return int(store.client.hget(keys.tenant(tenant), "service_mwt")) // 1_000


def with_policy(store, tenant: str) -> None:
    store.client.hset(keys.tenant(tenant), "policy", "1")
    store.client.zadd(keys.tenants(), {tenant: 1})


def test_a_name_never_heard_of_gets_no_credit(pool):
    assert starts_at(pool, "invented") == 1_000


def test_a_tenant_with_a_policy_starts_two_mean_jobs_below(pool):
    with_policy(pool, "blue")
    assert starts_at(pool, "blue") == 800


def test_a_tenant_known_for_a_minute_starts_two_mean_jobs_below(pool):
    job_id = admitted(pool, a_job("blue"))
    pool.cancel(job_id)
    pass_time(pool, 61_000, beating="w1")
    pool.client.hset(keys.tenant("blue"), "service_mwt", 0)
    assert starts_at(pool, "blue") == 800


def test_debt_stays(pool):
    with_policy(pool, "blue")
    pool.client.hset(keys.tenant("blue"), "service_mwt", 5_000_000)
    assert starts_at(pool, "blue") == 5_000


@pytest.mark.parametrize("settings_", [{"fairness": "turns"}, {"admission": "bounds"}])
def test_in_turns_and_in_bounds_there_is_no_credit(pool, settings, settings_):
    reconfigure(pool, settings, **settings_)
    with_policy(pool, "blue")
    assert starts_at(pool, "blue") == 1_000
