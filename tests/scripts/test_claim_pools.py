"""Tests of the turns of several pools: what a tenant received in one pool does not count in another."""

import pytest

from tests.support.builders import MODEL, a_job, admitted, an_ending, heartbeat, reconfigure

OTHER = "n"


@pytest.fixture
def pools(store, settings, clock):
    """Two pools. In the first, `z` has received a thousand jobs' worth of service."""
    reconfigure(store, settings, max_queue_size=100, max_inflight=1_000)
    heartbeat(store)
    heartbeat(store, "w2", model=OTHER)
    admitted(store, a_job("z", cost_mwt=90_000_000))
    store.claim("w1", "z1", MODEL, room=1, cells_free=4_096)
    admitted(store, a_job("z"))
    store.claim("w1", "z2", MODEL, room=1, cells_free=4_096)
    return store


def turns_in_the_other_pool(store, count: int) -> str:
    """Claim and settle one job after the other in the pool of `w2`; return their tenants in order."""
    order = []
    for i in range(count):
        (job,) = store.claim("w2", f"turn{i}", OTHER, room=1, cells_free=4_096)
        store.settle(an_ending(job.held), "w2")
        order.append(job.tenant)
    return "".join(order)


def test_one_job_in_a_busy_pool_does_not_bar_a_tenant_from_another_pool(pools):
    for _ in range(60):
        admitted(pools, a_job("x", model=OTHER, deadline_ms=600_000))
        admitted(pools, a_job("y", model=OTHER, deadline_ms=600_000))
    assert turns_in_the_other_pool(pools, 30).count("x") == 15
    admitted(pools, a_job("x"))
    assert turns_in_the_other_pool(pools, 60).count("x") == 30


def test_service_in_one_pool_is_no_credit_in_another(pools):
    """`x` is new to a pool in which `y` has been served, and starts there at the pool's virtual time."""
    for _ in range(20):
        admitted(pools, a_job("y", model=OTHER))
    turns_in_the_other_pool(pools, 10)
    admitted(pools, a_job("x"))
    for _ in range(4):
        admitted(pools, a_job("x", model=OTHER))
    assert turns_in_the_other_pool(pools, 8).count("x") == 4
