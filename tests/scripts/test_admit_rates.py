"""A tenant's own requests and tokens a minute: a virtual schedule, and a refusal that is 429 at the door."""

from shared.jobs.tenant_policy import TenantPolicy
from shared.store.tenants import Tenants
from tests.support.builders import a_beat, a_job, admitted, refused, shift


def test_a_tenants_requests_a_minute_are_kept_and_the_hint_says_when(store):
    Tenants(store.client).set("blue", TenantPolicy(rpm=3))
    store.renew(a_beat(), [])
    for _ in range(3):
        admitted(store, a_job())
    answer = refused(store, a_job())
    assert (answer.reason, answer.limit, answer.max) == ("rate_limited", "requests_per_minute", 3)
    assert 19_000 < answer.retry_hint_ms <= 24_000
    shift(store, 20_001)
    store.renew(a_beat(), [])
    admitted(store, a_job())


def test_a_tenants_tokens_a_minute_are_kept(store):
    Tenants(store.client).set("blue", TenantPolicy(tpm=60))
    store.renew(a_beat(), [])
    admitted(store, a_job())
    admitted(store, a_job())
    assert refused(store, a_job()).limit == "tokens_per_minute"
    shift(store, 30_001)
    store.renew(a_beat(), [])
    admitted(store, a_job())


def test_a_job_larger_than_a_minutes_tokens_may_come_when_nothing_came_before(store):
    Tenants(store.client).set("blue", TenantPolicy(tpm=10))
    store.renew(a_beat(), [])
    admitted(store, a_job())
    assert refused(store, a_job()).limit == "tokens_per_minute"


def test_a_new_rate_begins_anew_and_another_change_leaves_the_rate_as_it_stands(store):
    """At 10 tokens a minute the job of 30 is paid for after three minutes; at 6,000 nobody would wait for that."""
    tenants = Tenants(store.client)
    tenants.set("blue", TenantPolicy(tpm=10))
    store.renew(a_beat(), [])
    admitted(store, a_job())
    tenants.change("blue", {"weight": 2.0})
    assert refused(store, a_job()).limit == "tokens_per_minute"
    tenants.change("blue", {"tpm": 6_000})
    admitted(store, a_job())


def test_a_rate_that_was_taken_away_and_set_again_begins_anew(store):
    tenants = Tenants(store.client)
    tenants.set("blue", TenantPolicy(rpm=1))
    store.renew(a_beat(), [])
    admitted(store, a_job())
    tenants.remove("blue")
    tenants.set("blue", TenantPolicy(rpm=2))
    for _ in range(2):
        admitted(store, a_job())
    assert refused(store, a_job()).limit == "requests_per_minute"
