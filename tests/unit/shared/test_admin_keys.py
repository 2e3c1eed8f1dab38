"""Tests the admin keys in the store and the audit log of operators' actions."""

import json

import pytest
import redis

from shared.accounts.admin_actions import MAX_RECORDS, Actor, add_record, list_actions, local_actor, record
from shared.accounts.admin_keys import MAX_ADMIN_KEYS, AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.key_record import digest_of
from shared.accounts.tenants import Tenants
from shared.errors import ConfigError
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys

ADA = Actor("ada", "command line on desk")


@pytest.fixture
def admin_keys(redis_client: redis.Redis) -> AdminKeys:
    return AdminKeys(redis_client, ADA)


def actions(client: redis.Redis) -> list[tuple[str, str]]:
    """Return what was done on what, in order."""
    return [(one.what, one.on) for one in reversed(list(list_actions(client, limit=100)))]


def test_a_new_admin_key_is_found_by_its_digest_and_is_not_stored(redis_client, admin_keys):
    key, created = admin_keys.create("ada")
    assert key.startswith("psa_")
    assert admin_keys.find(digest_of(key)) == created
    assert admin_keys.find(digest_of(key + "x")) is None
    assert key.encode() not in b"".join(redis_client.hgetall(keys.admin_keys()).values())


def test_an_admin_key_is_invalid_from_its_expiry_on(redis_client, admin_keys):
    key, created = admin_keys.create("ada", expires_in_ms=60_000)
    redis_client.set(keys.clock(), f"={created.created_ms + 59_999}")
    assert admin_keys.find(digest_of(key)) == created
    redis_client.set(keys.clock(), f"={created.created_ms + 60_000}")
    assert admin_keys.find(digest_of(key)) is None


def test_the_name_of_an_expired_admin_key_can_be_used_again(redis_client, admin_keys):
    _, created = admin_keys.create("ada", expires_in_ms=60_000)
    with pytest.raises(ConfigError, match="name='ada' exists already"):
        admin_keys.create("ada")
    redis_client.set(keys.clock(), f"={created.created_ms + 60_000}")
    admin_keys.create("ada")


@pytest.mark.parametrize("name", ["", "a b", "admin key file", "x" * 64, "new\nline", "-x"])
def test_a_name_that_the_audit_log_could_not_show_is_refused(admin_keys, name):
    with pytest.raises(ConfigError, match="name="):
        admin_keys.create(name)


def test_an_admin_key_is_removed_by_its_name_or_its_id(redis_client, admin_keys):
    _, first = admin_keys.create("ada")
    _, second = admin_keys.create("bob")
    assert admin_keys.rm("ada") == (first,)
    assert admin_keys.rm(second.id[:6]) == (second,)
    assert admin_keys.rm("nobody") == ()
    assert not redis_client.exists(keys.admin_keys())


def test_an_admin_key_with_the_id_goes_before_one_with_the_id_as_its_name(admin_keys):
    _, first = admin_keys.create("ada")
    _, named = admin_keys.create(first.id)
    _, short = admin_keys.create(first.id[:6])
    with pytest.raises(ConfigError, match=f"{short.name!r} is the name of admin key {short.id} and begins.*{first.id}"):
        admin_keys.rm(short.name)
    assert admin_keys.rm(first.id) == (first,)
    assert admin_keys.rm(first.id) == (named,)
    assert admin_keys.rm(short.name) == (short,)


def test_the_number_of_admin_keys_is_bounded(redis_client, admin_keys):
    stored = json.dumps({"name": "ada", "created_ms": 1, "expires_ms": None})
    redis_client.hset(keys.admin_keys(), mapping={f"{i:064x}": stored for i in range(MAX_ADMIN_KEYS)})
    with pytest.raises(ConfigError, match=f"{MAX_ADMIN_KEYS} admin keys, and at most"):
        admin_keys.create("bob")


def test_an_admin_key_whose_record_is_spoiled_is_named(redis_client, admin_keys):
    key, _ = admin_keys.create("ada")
    redis_client.hset(keys.admin_keys(), digest_of(key), "spoiled")
    with pytest.raises(ConfigError, match=f"admin key {digest_of(key)[:12]}"):
        admin_keys.find(digest_of(key))


def test_every_change_of_keys_tenants_and_admin_keys_is_recorded(redis_client, admin_keys):
    api_keys, tenants = ApiKeys(redis_client, ADA), Tenants(redis_client, ADA)
    first = api_keys.create("blue", label="ci").record
    second = api_keys.rotate("ci", overlap_ms=1_000).record
    api_keys.rm(second.id)
    tenants.set("blue", TenantPolicy(weight=2.0, prompt_weight=0.0, disabled=True))
    tenants.remove("blue")
    _, admin_key = admin_keys.create("bob")
    admin_keys.rm("bob")
    assert actions(redis_client) == [
        ("key.add", f"key {first.id} of tenant blue, 'ci'"),
        ("key.rotate", f"key {second.id} of tenant blue, 'ci'"),
        ("key.rm", f"key {second.id} of tenant blue, 'ci'"),
        ("tenant.set", "tenant blue: weight=2.0 prompt_weight=0.0 disabled=True"),
        ("tenant.rm", "tenant blue"),
        ("admin_key.add", f"admin key {admin_key.id}, 'bob'"),
        ("admin_key.rm", f"admin key {admin_key.id}, 'bob'"),
    ]
    assert {(one.who, one.origin) for one in list_actions(redis_client, limit=100)} == {(ADA.who, ADA.origin)}


def test_what_changes_nothing_is_not_recorded(redis_client, admin_keys):
    admin_keys.rm("nobody")
    ApiKeys(redis_client).rm("nothing")
    Tenants(redis_client).remove("blue")
    with pytest.raises(ConfigError):
        ApiKeys(redis_client).create("not a tenant")
    assert actions(redis_client) == []


def test_without_a_named_actor_the_user_of_this_process_is_recorded(redis_client):
    ApiKeys(redis_client).create("blue")
    (one,) = list_actions(redis_client, limit=100)
    assert (one.who, one.origin) == (local_actor().who, local_actor().origin)


def test_the_audit_log_keeps_about_ten_thousand_records_of_bounded_length(redis_client):
    with redis_client.pipeline(transaction=False) as pipe:
        for number in range(MAX_RECORDS + 500):
            add_record(pipe, ADA, "tenant.set", f"{number} " + "x" * 1_000)
        pipe.execute()
    assert MAX_RECORDS <= redis_client.xlen(keys.admin_actions()) <= MAX_RECORDS + 200
    (newest,) = list_actions(redis_client, limit=1)
    assert newest.on.startswith(f"{MAX_RECORDS + 499} x")
    assert len(newest.on) == 200


def test_a_key_can_be_removed_from_a_full_store_although_it_accepts_no_record(redis_client, memory_is_full):
    created = ApiKeys(redis_client).create("blue").record
    with memory_is_full():
        assert ApiKeys(redis_client).rm(created.id) == (created,)
        record(redis_client, ADA, "key.rm", "another key")
    assert not redis_client.exists(keys.keys())
    assert [what for what, _ in actions(redis_client)] == ["key.add"]
