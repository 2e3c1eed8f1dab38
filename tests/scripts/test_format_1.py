"""Tests of a store as a version with format 1 left it, in which a tenant has one service for all pools."""

import pytest

from shared.audit.invariants import find_breaches, unowned_keys
from shared.audit.sweeper import Sweeper
from shared.store import keys
from tests.support.builders import MODEL, a_job, admitted, an_ending, claim_one, heartbeat

OTHER = "n"


def write_format_1(store, services_mwt: dict[str, int], virtual_time_mwt: int) -> None:
    """Replace this version's fields by those of format 1: these services, also as scores, and a virtual time."""
    client = store.client
    client.hset(keys.config(), mapping={"schema": 1, "schema_oldest": 1})
    client.hset(keys.books(MODEL), "v", virtual_time_mwt)
    for tenant, service_mwt in services_mwt.items():
        client.hset(keys.tenant(tenant), "service_mwt", service_mwt)
        for slug in (MODEL, OTHER):
            client.hdel(keys.tenant(tenant), keys.service_field(slug))
            client.zadd(keys.active(slug), {tenant: service_mwt}, xx=True)


def tenants_in_turn(store, count: int) -> str:
    order = []
    for _ in range(count):
        job = claim_one(store)
        store.settle(an_ending(job.held), "w1")
        order.append(job.tenant)
    return "".join(order)


@pytest.fixture
def pool(store):
    """A pool in which `a` and `b` each have four queued jobs of 90 wt."""
    heartbeat(store)
    for tenant in ("a", "b"):
        for _ in range(4):
            admitted(store, a_job(tenant))
    return store


def test_waiting_tenants_keep_the_order_of_their_turns(pool, settings):
    write_format_1(pool, {"a": 1_180_000, "b": 1_000_000}, 1_200_000)
    assert find_breaches(pool.client) == []
    pool.configure(settings)
    assert tenants_in_turn(pool, 8) == "bbababaa"


def test_service_from_other_pools_is_no_debt(pool, settings):
    """Format 1 barred `b` until `a` had been served as much here as `b` elsewhere."""
    write_format_1(pool, {"a": 1_000_000, "b": 900_000_000}, 1_000_000)
    pool.configure(settings)
    Sweeper(pool).sweep_all()
    assert tenants_in_turn(pool, 4).count("b") == 2


def test_a_tenant_that_was_idle_at_the_upgrade_starts_at_the_virtual_time_at_most(pool, settings):
    write_format_1(pool, {"a": 1_000_000, "b": 1_000_000, "c": 5_000_000}, 1_000_000)
    pool.configure(settings)
    admitted(pool, a_job("c"))
    assert tenants_in_turn(pool, 3).count("c") == 1
    assert int(pool.client.hget(keys.tenant("c"), keys.service_field(MODEL))) == 1_090_001


def test_a_job_that_ran_during_the_upgrade_is_settled_against_what_it_was_charged(store, settings):
    heartbeat(store)
    admitted(store, a_job("a", cost_mwt=500_000))
    held = claim_one(store).held
    write_format_1(store, {"a": 1_500_000}, 1_000_000)
    store.configure(settings)
    store.settle(an_ending(held), "w1")
    assert int(store.client.hget(keys.tenant("a"), keys.service_field(MODEL))) == 1_000_000 - 500_000 + 90_000


def test_keys_that_only_format_1_used_are_no_breach_and_are_deleted(pool, settings):
    write_format_1(pool, {"a": 1_000_000, "b": 1_000_000}, 1_000_000)
    for slug in (MODEL, "a-pool-without-workers"):
        pool.client.zadd(keys.promises(slug), {"a": 1_000_000})
    assert (find_breaches(pool.client), unowned_keys(pool.client)) == ([], [])
    pool.configure(settings)
    Sweeper(pool).one_pass()
    assert not pool.client.exists(keys.promises(MODEL))
