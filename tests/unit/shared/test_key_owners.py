"""Tests that keys with neither a TTL, an owner nor a permanent place are found, and that no other keys are."""

import pytest

from shared.audit.key_owners import family_of, unowned_keys
from shared.store import keys


def families(*deaths):
    """Parametrize a test with the families of keys that die in one of these ways."""
    found = {name: key for name, key in keys.TABLE.items() if not deaths or key.dies in deaths}
    return pytest.mark.parametrize("family", found.values(), ids=found)


def key_of(family):
    return family("part") if family.part else family()


@families()
def test_every_key_belongs_to_its_own_family(family):
    assert family_of(key_of(family)) is family


@pytest.mark.parametrize("key", ["penstock:", "penstock:confi", "penstock:config:x", "penstock:new", "rq:", "other"])
def test_a_key_that_no_row_names_has_no_family(key):
    assert family_of(key) is None


def test_an_empty_store_has_no_unowned_keys(redis_client):
    assert unowned_keys(redis_client) == []


@families("ttl")
def test_a_key_that_must_have_a_ttl_is_unowned_without_one(redis_client, family):
    key = key_of(family)
    redis_client.hset(key, "field", "value")
    assert unowned_keys(redis_client) == [key]
    redis_client.expire(key, 60)
    assert unowned_keys(redis_client) == []


def test_an_unknown_penstock_key_is_unowned_and_keys_of_other_programs_are_ignored(redis_client):
    redis_client.set("penstock:unknown", 1)
    redis_client.set("theirs", 1)
    assert unowned_keys(redis_client) == ["penstock:unknown"]


@families("with the job")
def test_a_key_that_lives_with_a_job_is_owned_while_that_job_is_inflight(redis_client, family):
    redis_client.set(family("one"), 1)
    redis_client.set(family("two"), 1)
    redis_client.zadd(keys.inflight(), {"one": 1})
    assert unowned_keys(redis_client) == [family("two")]


def test_a_tenant_s_key_without_a_ttl_is_owned_only_with_a_policy(redis_client):
    redis_client.hset(keys.tenant("blue"), "policy", "1")
    redis_client.hset(keys.tenant("green"), "waiting", "0")
    assert unowned_keys(redis_client) == [keys.tenant("green")]


@families("permanent", "emptied")
def test_a_key_that_is_permanent_or_emptied_needs_no_ttl(redis_client, family):
    redis_client.set(key_of(family), 1)
    assert unowned_keys(redis_client, inflight=set()) == []
