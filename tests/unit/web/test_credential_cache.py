"""What the door remembers of keys and policies counts for half a second and no longer."""

import pytest

from shared.clock import HeldClock
from shared.errors import StoreUnavailable
from shared.jobs.tenant_policy import TenantPolicy
from shared.store.api_keys import ApiKeys
from shared.store.tenants import Tenants
from web.runtime.credential_cache import CredentialCache

HALF_A_SECOND = 0.5


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def standing(redis_client, clock) -> CredentialCache:
    return CredentialCache(ApiKeys(redis_client), Tenants(redis_client), clock)


def _asked(redis_client, command: str) -> int:
    return redis_client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_many_requests_within_a_moment_ask_the_store_once(redis_client, standing):
    new = ApiKeys(redis_client).create("blue")
    redis_client.config_resetstat()
    for _ in range(10):
        assert standing.policy("blue") is None
        assert standing.key(new.key) == new.facts
    assert (_asked(redis_client, "hgetall"), _asked(redis_client, "hget")) == (1, 1)


def test_a_policy_that_is_set_counts_after_half_a_second(redis_client, standing, clock):
    assert standing.policy("blue") is None
    Tenants(redis_client).set("blue", TenantPolicy(disabled=True))
    clock.advance(HALF_A_SECOND)
    assert standing.policy("blue") == TenantPolicy(disabled=True)


def test_a_key_that_is_removed_opens_nothing_after_half_a_second(redis_client, standing, clock):
    new = ApiKeys(redis_client).create("blue")
    assert standing.key(new.key) == new.facts
    ApiKeys(redis_client).rm(new.facts.id)
    clock.advance(HALF_A_SECOND)
    assert standing.key(new.key) is None


def test_a_key_that_nobody_knew_counts_as_soon_as_it_is_made(redis_client, standing):
    new = ApiKeys(redis_client).create("blue")
    record = redis_client.hgetall("penstock:keys")
    redis_client.delete("penstock:keys")
    assert standing.key(new.key) is None
    redis_client.hset("penstock:keys", mapping=record)
    assert standing.key(new.key) == new.facts


def test_a_store_that_was_away_is_asked_again_at_once(redis_client, clock):
    away = redis_client.__class__(host="127.0.0.1", port=1, retry=None)
    tenants = Tenants(away)
    standing = CredentialCache(ApiKeys(away), tenants, clock)
    with pytest.raises(StoreUnavailable):
        standing.policy("blue")
    tenants._client = redis_client
    assert standing.policy("blue") is None
