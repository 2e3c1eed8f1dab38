"""Tests of a tenant's bounds on requests and tokens a minute; the door answers their refusals with HTTP 429."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from tests.support.builders import a_heartbeat, a_job, admitted, advance_clock, refused


def test_requests_above_a_tenants_rate_are_refused_until_the_rate_allows_the_next(store):
    Tenants(store.client).set("blue", TenantPolicy(rpm=3))
    store.renew(a_heartbeat(), [])
    for _ in range(3):
        admitted(store, a_job())
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit, answer.max) == ("rate_limited", "requests_per_minute", 3)
    assert 19_000 < answer.retry_hint_ms <= 24_000
    advance_clock(store, 20_001)
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())


@pytest.mark.parametrize("spoiled", ["1.5", "0", "-1", "abc"])
def test_a_rate_that_is_no_positive_integer_was_set_by_another_program_and_bounds_nothing(store, spoiled):
    Tenants(store.client).set("blue", TenantPolicy(weight=2.0))
    store.client.hset(keys.tenant("blue"), mapping={"policy_rpm": spoiled, "policy_tpm": spoiled})
    store.renew(a_heartbeat(), [])
    for _ in range(3):
        admitted(store, a_job())


def test_tokens_above_a_tenants_rate_are_refused_until_the_rate_allows_more(store):
    Tenants(store.client).set("blue", TenantPolicy(tpm=60))
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())
    admitted(store, a_job())
    assert refused(store, a_job()).limit == "tokens_per_minute"
    advance_clock(store, 30_001)
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())


def test_a_job_larger_than_the_tokens_of_a_minute_is_admitted_when_nothing_came_before(store):
    Tenants(store.client).set("blue", TenantPolicy(tpm=10))
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())
    assert refused(store, a_job()).limit == "tokens_per_minute"


def test_a_job_that_uses_up_the_tokens_of_weeks_does_not_free_the_tenant_of_its_bound(store):
    Tenants(store.client).set("blue", TenantPolicy(tpm=1, max_waiting_tokens=10**6))
    store.renew(a_heartbeat(), [])
    admitted(store, a_job(prompt_tokens=20_000))
    assert refused(store, a_job()).limit == "tokens_per_minute"


def test_a_changed_rate_starts_afresh_and_a_change_of_another_policy_field_does_not_reset_it(store):
    """At 10 tokens a minute a job of 30 tokens uses up three minutes; at 6,000 it uses up 0.3 seconds."""
    tenants = Tenants(store.client)
    tenants.set("blue", TenantPolicy(tpm=10))
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())
    tenants.change("blue", {"weight": 2.0})
    assert refused(store, a_job()).limit == "tokens_per_minute"
    tenants.change("blue", {"tpm": 6_000})
    admitted(store, a_job())


def test_a_rate_that_was_removed_and_set_again_starts_afresh(store):
    tenants = Tenants(store.client)
    tenants.set("blue", TenantPolicy(rpm=1))
    store.renew(a_heartbeat(), [])
    admitted(store, a_job())
    tenants.remove("blue")
    tenants.set("blue", TenantPolicy(rpm=2))
    for _ in range(2):
        admitted(store, a_job())
    assert refused(store, a_job()).limit == "requests_per_minute"
