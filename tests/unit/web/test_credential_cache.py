"""Tests that the door's cached API keys and policies are valid for half a second and no longer."""

import pytest

from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants
from shared.clock import ManualClock
from shared.errors import StoreUnavailable
from shared.jobs.tenant_policy import TenantPolicy
from web.runtime.accounts import Accounts, ask_one
from web.runtime.credentials.credential_cache import CredentialCache

HALF_A_SECOND = 0.5


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(redis_client, clock) -> CredentialCache:
    return CredentialCache(ask_one(Accounts.of_store(redis_client)), clock)


def _command_calls(redis_client, command: str) -> int:
    return redis_client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_many_requests_within_half_a_second_read_the_store_once(redis_client, cache):
    new = ApiKeys(redis_client).create("blue")
    redis_client.config_resetstat()
    for _ in range(10):
        assert cache.policy("blue") is None
        assert cache.key(new.key) == new.record
    assert (_command_calls(redis_client, "hgetall"), _command_calls(redis_client, "hget")) == (1, 1)


def test_a_new_policy_takes_effect_after_half_a_second(redis_client, cache, clock):
    assert cache.policy("blue") is None
    Tenants(redis_client).set("blue", TenantPolicy(disabled=True))
    clock.advance(HALF_A_SECOND)
    assert cache.policy("blue") == TenantPolicy(disabled=True)


def test_a_removed_key_is_invalid_after_half_a_second(redis_client, cache, clock):
    new = ApiKeys(redis_client).create("blue")
    assert cache.key(new.key) == new.record
    ApiKeys(redis_client).rm(new.record.id)
    clock.advance(HALF_A_SECOND)
    assert cache.key(new.key) is None


def test_a_removed_admin_key_is_invalid_after_half_a_second(redis_client, cache, clock):
    key, record = AdminKeys(redis_client).create("ada")
    assert cache.admin_key(key) == record
    AdminKeys(redis_client).rm("ada")
    clock.advance(HALF_A_SECOND)
    assert cache.admin_key(key) is None


def test_a_key_that_was_unknown_is_valid_as_soon_as_it_exists(redis_client, cache):
    new = ApiKeys(redis_client).create("blue")
    record = redis_client.hgetall("penstock:keys")
    redis_client.delete("penstock:keys")
    assert cache.key(new.key) is None
    redis_client.hset("penstock:keys", mapping=record)
    assert cache.key(new.key) == new.record


def test_a_read_that_failed_is_repeated_at_the_next_request(redis_client, clock):
    unreachable = redis_client.__class__(host="127.0.0.1", port=1, retry=None)
    accounts = Accounts.of_store(unreachable)
    cache = CredentialCache(ask_one(accounts), clock)
    with pytest.raises(StoreUnavailable):
        cache.policy("blue")
    accounts.tenants._client = redis_client
    assert cache.policy("blue") is None
