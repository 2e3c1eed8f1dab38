"""Tests of the policies of groups: what is stored, who belongs to a group, and when a group may be removed."""

import pytest

from shared.accounts.groups import Groups
from shared.accounts.tenants import Tenants
from shared.errors import ConfigError
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys


@pytest.fixture
def groups(redis_client):
    return Groups(redis_client)


@pytest.fixture
def tenants(redis_client):
    return Tenants(redis_client)


def test_a_group_is_read_as_it_was_written(groups):
    budget = {"tokens_per_day": 10**9, "tokens_per_month": 10**15, "prompt_weight": 0.25, "answer_weight": 0.0}
    policy = GroupPolicy(weight=2.5, max_waiting=3, max_waiting_tokens=900, **budget)
    groups.set("team", policy)
    assert groups.get("team") == policy
    assert groups.change("team", {"weight": None, "max_waiting": 4}) == GroupPolicy(None, 4, 900, **budget)
    assert groups.get("team") == GroupPolicy(None, 4, 900, **budget)
    assert groups.get("other") is None


def test_groups_are_listed_with_their_tenants(groups, tenants):
    groups.set("b-team", GroupPolicy())
    groups.set("a-team", GroupPolicy(weight=2))
    tenants.set("ann", TenantPolicy(group="a-team"))
    tenants.set("bob", TenantPolicy(group="a-team"))
    assert [(entry.name, entry.policy.weight, entry.tenants) for entry in groups.list()] == [
        ("a-team", 2.0, 2),
        ("b-team", None, 0),
    ]


def test_a_tenant_joins_only_a_group_that_exists(groups, tenants):
    with pytest.raises(ConfigError, match="group='team' does not exist"):
        tenants.set("ann", TenantPolicy(group="team"))
    assert tenants.get("ann") is None
    groups.set("team", GroupPolicy())
    tenants.set("ann", TenantPolicy(group="team"))
    assert tenants.change("ann", {"weight": 2.0}).group == "team"


def test_a_group_with_tenants_is_not_removed(groups, tenants):
    groups.set("team", GroupPolicy())
    tenants.set("ann", TenantPolicy(group="team"))
    with pytest.raises(ConfigError, match="group='team' has 1 tenants, such as 'ann'"):
        groups.remove("team")
    tenants.change("ann", {"group": None})
    assert groups.remove("team")
    assert not groups.remove("team")
    assert groups.list() == ()


def test_the_record_of_a_removed_group_expires(groups, redis_client):
    groups.set("team", GroupPolicy(weight=2))
    redis_client.hset(keys.tenant("@team"), "v|m", 5)
    groups.remove("team")
    assert redis_client.ttl(keys.tenant("@team")) > 86_400
    groups.set("team", GroupPolicy())
    assert redis_client.ttl(keys.tenant("@team")) == -1


@pytest.mark.parametrize("name", ["", "a b", "@team", "a.b", "default", "x" * 65])
def test_a_name_that_is_no_group_name_is_refused(groups, name):
    with pytest.raises(ConfigError, match="is not a group name"):
        groups.set(name, GroupPolicy())


def test_a_policy_that_is_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="weight=0"):
        GroupPolicy(weight=0)


def test_a_stored_field_that_another_program_spoiled_counts_as_its_default_and_is_named(groups, redis_client):
    groups.set("team", GroupPolicy(weight=2))
    redis_client.hset(keys.tenant("@team"), "policy_max_waiting", "many")
    assert groups.get("team") == GroupPolicy(weight=2)
    assert [entry.policy for entry in groups.list()] == [GroupPolicy(weight=2)]
    (problem,) = groups.find_spoiled()
    assert problem == "group 'team' has policy_max_waiting='many' in the store, which is not a valid value"
    groups.change("team", {"weight": 3})
    assert groups.find_spoiled() == ()


def test_a_record_that_another_program_replaced_hides_no_other_group_and_no_member(groups, redis_client):
    for name in ("lab", "team"):
        groups.set(name, GroupPolicy(weight=2))
    for name in ("blue", "red"):
        Tenants(redis_client).set(name, TenantPolicy(group="lab"))
    for owner in ("@team", "red"):
        redis_client.set(keys.tenant(owner), "no hash")
    listed = [(entry.name, entry.policy, entry.tenants) for entry in groups.list()]
    assert listed == [("lab", GroupPolicy(weight=2), 1), ("team", GroupPolicy(), 0)]
    (problem,) = groups.find_spoiled()
    assert problem.startswith("group 'team' has a value of another type")
    # An operator can set its policy again, and the other program's value is kept.
    assert groups.change("team", {"weight": 3}) == groups.get("team") == GroupPolicy(weight=3)
    assert groups.find_spoiled() == ()
    assert redis_client.get(keys.spoiled(keys.tenant("@team"))) == b"no hash"
    redis_client.delete(keys.tenant("red"))
    redis_client.zrem(keys.tenants(), "red")


def test_a_group_without_a_policy_or_with_a_spoiled_weight_has_the_weight_1(groups, redis_client):
    groups.set("team", GroupPolicy(weight=2.5))
    groups.set("odd", GroupPolicy(weight=2.5))
    redis_client.hset(keys.tenant("@odd"), "policy_weight_milli", "-7")
    redis_client.set(keys.tenant("@text"), "not a hash")
    assert groups.weights({"team", "odd", "gone", "text"}) == {"team": 2.5, "odd": 1.0, "gone": 1.0, "text": 1.0}
    redis_client.delete(keys.tenant("@text"))
