"""Tests of groups: a group takes turns and is admitted as one tenant, and its tenants share what it gets."""

import pytest

from shared.audit.invariants import find_breaches
from shared.audit.repair import repair
from shared.audit.sweeper import Sweeper
from shared.jobs.outcomes import Refused
from shared.store import keys
from shared.store.replies import Progress
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    claim_one,
    heartbeat,
    hold_clock,
    reconfigure,
    refused,
)
from tests.support.model_turns import CREDIT_JOBS

TEAM = "@team"


def put(store, group: str, *tenants: str) -> None:
    """Set the group of these tenants in their policies; '' for none."""
    for tenant in tenants:
        store.client.hset(keys.tenant(tenant), mapping={"policy": "1", "policy_group": group})
        store.client.zadd(keys.tenants(), {tenant: 1}, nx=True)


def set_group(store, group: str, **policy: int) -> None:
    fields = {f"policy_{name}": value for name, value in policy.items()}
    store.client.hset(keys.tenant(f"@{group}"), mapping={"policy": "1", **fields})
    store.client.sadd(keys.groups(), group)


@pytest.fixture
def pool(store, settings):
    """A pool of one worker, whose time stands still; `a`, `b` and `c` are tenants of one group."""
    hold_clock(store)
    reconfigure(store, settings, max_queue_size=1_000, max_inflight=4_000, max_queue_tokens=10**9)
    heartbeat(store)
    set_group(store, "team")
    put(store, "team", "a", "b", "c")
    return store


def queue(store, jobs: int, *tenants: str, **fields) -> None:
    for _ in range(jobs):
        for tenant in tenants:
            admitted(store, a_job(tenant, deadline_ms=600_000, **fields))


def turns(store, count: int, completion_tokens: int = 20) -> str:
    order = []
    for _ in range(count):
        job = claim_one(store)
        store.settle(an_ending(job.held), "w1")
        order.append(job.tenant)
    return "".join(order)


def service_mwt(store, owner: str) -> int:
    return int(store.client.hget(keys.tenant(owner), keys.service_field(MODEL)) or 0)


def test_a_group_gets_the_turns_of_one_tenant_and_its_tenants_share_them(pool):
    queue(pool, 12, "a", "b", "c", "x")
    order = turns(pool, 24)
    assert {tenant: order.count(tenant) for tenant in "abcx"} == {"a": 4, "b": 4, "c": 4, "x": 12}
    # x came after the group.
    assert service_mwt(pool, TEAM) == service_mwt(pool, "x") - 1 == 3 * service_mwt(pool, "a")


def test_a_weight_counts_among_groups_and_a_tenants_weight_within_its_group(pool):
    set_group(pool, "team", weight_milli=4_000)
    pool.client.hset(keys.tenant("a"), "policy_weight_milli", 2_000)
    queue(pool, 40, "a", "b", "x")
    order = turns(pool, 30)
    assert {tenant: order.count(tenant) for tenant in "abx"} == {"a": 16, "b": 8, "x": 6}


def test_groups_of_weights_one_and_four_differ_from_their_shares_by_at_most_one_job(pool):
    set_group(pool, "other", weight_milli=4_000)
    put(pool, "other", "d", "e")
    queue(pool, 40, "a", "b", "d", "e")
    order = turns(pool, 50)
    for end in range(1, 51):
        light = order[:end].count("a") + order[:end].count("b")
        assert abs(light - end / 5) <= 1
    assert abs(order.count("d") - order.count("e")) <= 1


def test_a_team_that_splits_into_200_tenants_gets_the_turns_of_one(pool):
    members = [f"m{i}" for i in range(200)]
    put(pool, "team", *members)
    queue(pool, 1, *members)
    queue(pool, 60, "x")
    order = [pool.claim("w1", f"c{i}", MODEL, room=1, cells_free=4_096)[0].tenant for i in range(100)]
    assert order.count("x") == 50


def test_the_tenants_of_a_group_have_one_first_job_and_one_share_when_they_all_start_at_once(store, settings):
    """The pool has 64 places. A quarter of them is kept for tenants with little queued work."""
    hold_clock(store)
    reconfigure(store, settings, max_inflight=64, max_queue_size=1_000)
    store.renew(a_heartbeat(facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 1}), [])
    set_group(store, "team")
    members = [f"m{i}" for i in range(200)]
    put(store, "team", *members)
    taken = dict.fromkeys(("team", "alone"), 0)
    for member in members:
        for name, tenant in (("team", member), ("alone", "alone")):
            taken[name] += not isinstance(store.admit(a_job(tenant, deadline_ms=600_000)), Refused)
    assert 0 < taken["team"] <= 1.1 * taken["alone"]
    assert store.overview().inflight < 64
    admitted(store, a_job("newcomer"))


def test_a_changed_weight_of_a_group_applies_while_its_tenants_have_queued_jobs(pool):
    queue(pool, 10, "a", "x")
    set_group(pool, "team", weight_milli=4_000)
    assert pool.reconcile("a", MODEL, thorough=False) == 1
    assert pool.client.hget(keys.books(MODEL), "weight_milli") == b"5000"
    assert pool.rebook(MODEL) == 0


def test_a_group_gets_one_groups_kept_places(store, settings):
    reconfigure(store, settings, max_inflight=16, max_queue_size=100)
    heartbeat(store)
    set_group(store, "team")
    members = [f"m{i}" for i in range(20)]
    put(store, "team", *members)
    for member in members[:12]:
        admitted(store, a_job(member))
    assert refused(store, a_job(members[12])).reason == "inflight_full"
    admitted(store, a_job("newcomer"))


def test_a_groups_bounds_hold_for_its_tenants_together(pool):
    set_group(pool, "team", max_waiting=3, max_waiting_tokens=10_000)
    queue(pool, 1, "a", "b", "c")
    answer = refused(pool, a_job("a"))
    assert (answer.reason, answer.limit, answer.value, answer.max) == ("tenant_queue_full", "group_waiting_jobs", 3, 3)
    queue(pool, 5, "x")
    set_group(pool, "team", max_waiting=100, max_waiting_tokens=100)
    answer = refused(pool, a_job("b"))
    assert (answer.reason, answer.limit, answer.value) == ("tenant_tokens_full", "group_waiting_tokens", 90)


def test_by_default_a_group_has_the_bounds_of_one_tenant(store, settings):
    reconfigure(store, settings, max_queue_size=5, max_inflight=4_000)
    heartbeat(store)
    set_group(store, "team")
    put(store, "team", "a", "b", "c")
    queue(store, 2, "a", "b")
    queue(store, 1, "c")
    assert refused(store, a_job("a")).limit == "group_waiting_jobs"


def test_a_tenant_that_joins_a_group_keeps_its_service_and_the_group_is_not_charged_for_it(pool):
    queue(pool, 20, "x", "y")
    turns(pool, 10)
    before = service_mwt(pool, "x")
    put(pool, "team", "x")
    assert pool.reconcile("x", MODEL, thorough=False) > 0
    assert find_breaches(pool.client) == []
    # The group is new to the pool: it starts below the virtual time by its credit.
    assert service_mwt(pool, TEAM) == int(pool.client.hget(keys.books(MODEL), "v")) - CREDIT_JOBS * 90_000
    assert service_mwt(pool, "x") < before
    queue(pool, 10, "a")
    order = turns(pool, 20)
    assert 8 <= order.count("y") <= 10, order
    # `a`, which has a policy, also gets a credit in its group's virtual time.
    assert 0 <= order.count("a") - order.count("x") <= 2


def test_a_tenant_takes_its_debt_from_group_to_group_and_back(pool):
    queue(pool, 1, "a", "b", "x")
    turns(pool, 2)
    debtor = claim_one(pool)
    pool.settle(an_ending(debtor.held), "w1")
    queue(pool, 10, "a", "b", "x")
    pool.client.hincrby(keys.tenant("x"), keys.service_field(MODEL), 450_000)
    Sweeper(pool).sweep_all()
    debt = service_mwt(pool, "x") - int(pool.client.hget(keys.books(MODEL), "v"))
    put(pool, "team", "x")
    pool.reconcile("x", MODEL)
    assert service_mwt(pool, "x") - int(pool.client.hget(keys.tenant(TEAM), f"v|{MODEL}")) == debt
    put(pool, "", "x")
    pool.reconcile("x", MODEL)
    assert service_mwt(pool, "x") - int(pool.client.hget(keys.books(MODEL), "v")) == debt
    assert "x" not in turns(pool, 5)


def test_an_idle_tenant_cannot_shed_its_debt_by_a_change_of_groups(pool):
    queue(pool, 1, "x")
    held = claim_one(pool).held
    queue(pool, 10, "y")
    pool.settle(an_ending(held, usage=an_ending(held).usage.__class__(10, 0, 500)), "w1")
    put(pool, "team", "x")
    queue(pool, 5, "a", "x")
    debt = service_mwt(pool, "x") - service_mwt(pool, "a")
    assert debt > 1_000_000


def test_a_running_job_stays_charged_to_the_group_in_which_it_was_claimed(pool):
    set_group(pool, "other")
    queue(pool, 1, "a", cost_mwt=500_000)
    held = claim_one(pool).held
    assert service_mwt(pool, TEAM) == 500_000
    put(pool, "other", "a")
    pool.settle(an_ending(held), "w1")
    assert (service_mwt(pool, TEAM), service_mwt(pool, "@other"), service_mwt(pool, "a")) == (90_000, 0, 90_000)


def test_a_released_job_gives_its_charge_back_to_its_group(pool):
    queue(pool, 1, "a")
    pool.release("w1", [claim_one(pool).held])
    assert (service_mwt(pool, TEAM), service_mwt(pool, "a")) == (0, 0)
    put(pool, "", "a")
    pool.reconcile("a", MODEL)
    claim_one(pool)
    assert (service_mwt(pool, TEAM), service_mwt(pool, "a")) == (0, 90_000)


def test_a_long_answer_is_charged_to_the_group_while_it_grows(pool):
    queue(pool, 1, "a")
    held = claim_one(pool).held
    pool.renew(a_heartbeat(), [held], progress={held.id: Progress(500)})
    assert service_mwt(pool, TEAM) == service_mwt(pool, "a") == (10 + 4 * 500) * 1_000


def test_a_job_that_fits_no_free_cells_is_passed_over_within_its_group_and_then_the_group(pool):
    queue(pool, 1, "a", prompt_tokens=3_000)
    queue(pool, 1, "b", "x")
    held = [pool.claim("w1", f"c{i}", MODEL, room=1, cells_free=100) for i in range(3)]
    assert [[job.tenant for job in jobs] for jobs in held] == [["b"], ["x"], []]


def test_a_group_whose_set_is_empty_holds_nobody_up(pool):
    queue(pool, 1, "a", "x")
    pool.client.delete(keys.active(f"{MODEL}{TEAM}"))
    pool.client.zadd(keys.active(MODEL), {TEAM: -1})
    assert claim_one(pool).tenant == "x"
    Sweeper(pool).sweep_all()
    assert claim_one(pool).tenant == "a"


@pytest.mark.parametrize(
    "field", ["waiting", "waiting_tokens", "waiting_mwt", "n|m", "b|m", "t|m", "w|m", "s|m", "v|m"]
)
@pytest.mark.parametrize("value", ["abc", "1e300", "-5", None])
def test_every_spoiled_field_of_a_groups_record_heals(pool, field, value):
    queue(pool, 2, "a", "b", "x")
    turns(pool, 3)
    if value is None:
        pool.client.hdel(keys.tenant(TEAM), field)
    else:
        pool.client.hset(keys.tenant(TEAM), field, value)
    repair(pool, timely=False)
    assert find_breaches(pool.client) == []
    assert sorted(turns(pool, 3)) == sorted("abx")


@pytest.mark.parametrize("key", [keys.tenant(TEAM), keys.lists(TEAM), keys.active(f"m{TEAM}"), keys.active("m")])
def test_a_groups_keys_are_rebuilt_if_another_program_deletes_them(pool, key):
    queue(pool, 2, "a", "b", "x")
    turns(pool, 3)
    pool.client.delete(key)
    repair(pool, timely=False)
    set_group(pool, "team")
    assert find_breaches(pool.client) == []
    assert sorted(turns(pool, 3)) == sorted("abx")


def test_a_tenants_record_that_is_deleted_puts_it_outside_its_group(pool):
    queue(pool, 2, "a", "b", "x")
    pool.client.delete(keys.tenant("a"))
    repair(pool, timely=False)
    assert find_breaches(pool.client) == []
    assert sorted(turns(pool, 6)) == sorted("aabbxx")


def test_the_tenants_of_a_group_have_one_appointment(store):
    store.renew(a_heartbeat(facts={"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 1}), [])
    set_group(store, "team")
    put(store, "team", "a", "b")
    for tenant in ("a", "b", "a"):
        store.admit(a_job(tenant, deadline_ms=600_000))
    assert store.client.zrange(keys.appointments(MODEL), 0, -1) == [TEAM.encode()]
