"""Tests of groups whose keys another program has changed: nobody waits for them, and they heal."""

import pytest

from shared.audit.invariants import find_breaches
from shared.audit.repair import repair
from shared.audit.sweeper import Sweeper
from shared.store import keys
from tests.scripts.test_groups import put, queue, set_group, turns
from tests.support.builders import MODEL, a_job, admitted, claim_one, heartbeat, reconfigure

TEAM = "@team"


@pytest.fixture
def pool(store, settings):
    """A pool of one worker; `a`, `b` and `c` are tenants of one group."""
    reconfigure(store, settings, max_queue_size=10_000, max_inflight=10_000, max_queue_tokens=10**9)
    heartbeat(store)
    set_group(store, "team")
    put(store, "team", "a", "b", "c")
    return store


@pytest.mark.parametrize("stranger", ["z", "odd name:x.y", "x"])
def test_an_owner_that_does_not_belong_into_a_groups_set_holds_nobody_up(pool, stranger):
    queue(pool, 2, "a", "x")
    pool.client.zadd(keys.active(f"{MODEL}{TEAM}"), {stranger: -(10**9)})
    assert sorted(turns(pool, 4)) == list("aaxx")


@pytest.mark.parametrize("stranger", ["a", "z", "@ghost", "odd name:x.y"])
def test_an_owner_that_does_not_belong_into_the_pools_set_holds_nobody_up(pool, stranger):
    queue(pool, 2, "a", "x")
    pool.client.zadd(keys.active(MODEL), {stranger: -(10**9)})
    assert sorted(turns(pool, 4)) == list("aaxx")


@pytest.mark.parametrize("value", ["abc", "x", "@x y", "@other", "", "team", "@", "@" + "t" * 100])
def test_a_spoiled_group_of_a_tenant_in_a_pool_heals(pool, value):
    queue(pool, 4, "a", "b", "x")
    turns(pool, 3)
    pool.client.hset(keys.tenant("a"), f"g|{MODEL}", value)
    claim_one(pool)
    admitted(pool, a_job("a", deadline_ms=600_000))
    repair(pool, timely=False)
    assert find_breaches(pool.client) == []
    assert not pool.client.exists(keys.tenant("abc"))
    assert pool.client.hget(keys.tenant("a"), f"g|{MODEL}") == TEAM.encode()
    turns(pool, pool.client.zcard(keys.deadlines()))
    assert find_breaches(pool.client) == []


@pytest.mark.parametrize("value", ["a b", "@team", "t" * 100, "default."])
def test_a_spoiled_group_in_a_policy_counts_as_none(pool, value):
    put(pool, value, "a")
    queue(pool, 2, "a", "b", "x")
    assert [raw.decode() for raw in pool.client.zrange(keys.active(MODEL), 0, -1)] == ["a", TEAM, "x"]
    assert find_breaches(pool.client) == []


def test_the_sums_of_a_group_heal_although_the_pool_has_more_owners_than_one_call_examines(pool):
    queue(pool, 2, "a", "b", "x")
    pool.client.hset(keys.tenant(TEAM), mapping=dict.fromkeys(["waiting", f"n|{MODEL}", f"b|{MODEL}"], 7))
    others = {f"other{i}": 10**12 for i in range(1_100)}
    pool.client.zadd(keys.active(MODEL), others)
    Sweeper(pool).sweep_all()
    assert pool.client.hmget(keys.tenant(TEAM), "waiting", f"n|{MODEL}") == [b"4", b"4"]
    pool.client.zrem(keys.active(MODEL), *others)


@pytest.mark.parametrize(
    ("field", "value"), [(f"g|{MODEL}", TEAM), (f"g|{MODEL}", "@other"), ("policy_group", "other")]
)
def test_a_group_belongs_to_no_group_whatever_its_record_says(pool, field, value):
    queue(pool, 2, "a", "x")
    pool.client.hset(keys.tenant(TEAM), field, value)
    assert turns(pool, 4).count("a") == 2
    queue(pool, 2, "a", "x")
    assert turns(pool, 2).count("a") == 1
    assert find_breaches(pool.client) == []


@pytest.mark.parametrize("value", ["abc", "@x y", "@"])
def test_a_spoiled_group_of_a_tenant_without_a_group_heals(pool, value):
    queue(pool, 2, "x")
    pool.client.hset(keys.tenant("x"), f"g|{MODEL}", value)
    repair(pool, timely=False)
    assert find_breaches(pool.client) == []
    assert turns(pool, 2) == "xx"
