"""Tests of budgets in groups, after escalation, and when other programs and older versions change what counts."""

from dataclasses import replace

import pytest

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.job import Usage
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.budgets import MOST, counted, end_one, set_budget
from tests.support.builders import a_job, admitted, an_ending, claim_one, refused
from tests.support.routed import a_route, serve, to


def test_a_job_escalates_only_to_a_pool_where_it_stays_within_the_budget(evening):
    serve(evening, "small", "big", "huge")
    route = a_route(evening, "small", "huge", "big")
    set_budget(evening, tokens_per_day=100)
    job = to(route, escalates=True)
    pools = [replace(pool, max_tokens=most) for pool, most in zip(job.routing.pools, (20, 91, 90), strict=True)]
    admitted(evening, replace(job, routing=replace(job.routing, pools=tuple(pools))))
    assert counted(evening) == (0, 0, MOST)
    (small,) = evening.claim("worker-of-small", "claim-1", "small", room=1, cells_free=10**6)
    assert evening.escalate(an_ending(small.held)) == "big"
    assert counted(evening) == (0, 0, 100)
    (big,) = evening.claim("worker-of-big", "claim-2", "big", room=1, cells_free=10**6)
    evening.settle(an_ending(big.held, usage=Usage(10, 0, 80)), "worker-of-big")
    assert counted(evening) == (90, 90, 0)


# Groups.


@pytest.fixture
def team(evening):
    """The store with two tenants, blue and red, in a group with a budget for three jobs of a day."""
    Groups(evening.client).set("team", GroupPolicy(tokens_per_day=3 * MOST + 5))
    for tenant in ("blue", "red"):
        Tenants(evening.client).set(tenant, TenantPolicy(group="team"))
    return evening


def test_the_tenants_of_a_group_use_its_budget_together_and_never_more(team):
    for tenant in ("blue", "red", "blue"):
        admitted(team, a_job(tenant))
    for tenant in ("blue", "red"):
        answer = refused(team, a_job(tenant))
        assert (answer.limit, answer.value) == ("group_tokens_per_day", 3 * MOST)
    assert (counted(team), counted(team, "red"), counted(team, "@team")) == ((0, 0, 60), (0, 0, 30), (0, 0, 90))
    for _ in range(3):
        end_one(team, 10, 10)
    assert (counted(team)[0], counted(team, "red")[0], counted(team, "@team")) == (40, 20, (60, 60, 0))
    admitted(team, a_job("red"))
    assert refused(team, a_job()).value == 90


def test_a_job_of_a_tenant_that_changes_its_group_counts_in_the_group_of_its_admission(team):
    admitted(team, a_job())
    set_budget(team, group=None)
    end_one(team)
    assert counted(team) == counted(team, "@team") == (30, 30, 0)


def test_a_group_weighs_tokens_by_its_own_weights(team):
    Groups(team.client).change("team", {"answer_weight": 2.0})
    admitted(team, a_job())
    assert (counted(team)[2], counted(team, "@team")[2]) == (30, 50)


# Changes by another program or another version.


@pytest.mark.parametrize("spoiled", ["much", "2027-01-15 x 3 4", "", "-5"])
def test_spoiled_counts_stop_no_job_and_what_is_reserved_is_counted_again(evening, spoiled):
    set_budget(evening, tokens_per_day=1_000)
    admitted(evening, a_job())
    evening.client.hset(keys.tenant("blue"), "budget", spoiled)
    evening.reconcile("blue", "m")
    assert counted(evening) == (0, 0, MOST)
    end_one(evening)
    assert counted(evening) == (30, 30, 0)


@pytest.mark.parametrize("spoiled", ["0", "-1", "1.5", "abc", "1e300"])
def test_a_budget_that_is_no_positive_integer_was_set_by_another_program_and_bounds_nothing(evening, spoiled):
    set_budget(evening, tokens_per_day=1)
    evening.client.hset(keys.tenant("blue"), "policy_tokens_per_day", spoiled)
    admitted(evening, a_job())


def test_what_was_reserved_for_a_job_whose_record_was_deleted_is_given_back(team):
    job_id = admitted(team, a_job())
    admitted(team, a_job("red"))
    team.client.delete(f"rq:job:{job_id}")
    for _ in range(2):
        team.reconcile("blue", "m")
    assert (counted(team), counted(team, "@team")) == ((0, 0, 0), (0, 0, MOST))


def test_a_job_that_an_older_version_admitted_counts_when_it_ends(evening):
    admitted(evening, a_job())
    job_id = admitted(evening, a_job("red"))
    evening.client.hdel(f"rq:job:{job_id}", "penstock_budget")
    evening.client.hdel(keys.tenant("red"), "budget")
    admitted(evening, a_job("red"))
    for _ in range(3):
        end_one(evening, 10, 5)
    assert counted(evening, "red") == (30, 30, 0)


def test_the_end_of_a_job_does_not_create_the_record_of_a_group_again(team):
    admitted(team, a_job())
    job = claim_one(team)
    team.client.delete(keys.tenant("@team"))
    team.client.srem(keys.groups(), "team")
    team.client.hdel(keys.tenant("blue"), "policy_group")
    team.settle(an_ending(job.held), "w1")
    team.reconcile("blue", "m")
    assert not team.client.exists(keys.tenant("@team"))
