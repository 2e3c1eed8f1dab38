"""Tests which refusals of `admit` a door may repeat to other requests, and how the store counts repeated ones."""

import pytest

from shared.accounts.tenants import Tenants
from shared.jobs.key_bounds import KeyBounds
from shared.jobs.outcomes import Refusal
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_job, admitted, heartbeat, reconfigure, refused


@pytest.fixture
def full(store: Store, settings: Settings) -> Store:
    """A store with a worker and as many inflight jobs as it may have."""
    heartbeat(store)
    reconfigure(store, settings, max_inflight=1)
    admitted(store, a_job())
    return store


def counters(store: Store) -> dict[bytes, int]:
    return {name: int(value) for name, value in store.client.hgetall(keys.stats()).items()}


def test_a_refusal_for_a_full_system_is_shared_with_hints_around_its_own(full):
    answer = refused(full, a_job())
    assert answer.shared_hints_ms is not None
    shortest_ms, longest_ms = answer.shared_hints_ms
    assert shortest_ms <= answer.retry_hint_ms <= longest_ms


def test_a_refusal_whose_client_is_expected_at_a_time_of_its_own_is_not_shared(full):
    answer = refused(full, a_job(body_digest="0123456789abcdef"))
    assert answer.retry_ms
    assert answer.shared_hints_ms is None


def test_a_refusal_of_a_repeated_request_is_not_shared(full):
    assert refused(full, a_job(), attempt=1).shared_hints_ms is None


@pytest.mark.parametrize(
    "policy", [{"rpm": 1_000}, {"tpm": 1_000_000}, {"tokens_per_day": 10**9}, {"tokens_per_month": 10**9}]
)
def test_a_refusal_is_not_shared_if_a_larger_request_could_get_another_one(full, policy):
    Tenants(full.client).set("blue", TenantPolicy(**policy))
    answer = refused(full, a_job(tenant="blue"))
    assert (answer.reason, answer.shared_hints_ms) == (Refusal.INFLIGHT_FULL, None)


def test_the_refusal_of_a_key_with_bounds_is_not_shared(full):
    assert refused(full, a_job(key_id="k", key_bounds=KeyBounds(rpm=1_000))).shared_hints_ms is None


def test_repeated_refusals_are_counted_as_the_store_s_own(full):
    job, before = a_job(), counters(full)
    answer = refused(full, job)
    middle = counters(full)
    full.count_refusals(job.tenant, MODEL, answer.reason, job.prompt_tokens + job.max_tokens, [answer.retry_hint_ms])
    after = counters(full)
    assert {name: after[name] - middle.get(name, 0) for name in after} == {
        name: middle.get(name, 0) - before.get(name, 0) for name in after
    }


def test_a_refusal_without_a_reservation_because_of_the_requests_own_deadline_is_not_shared(full):
    short = refused(full, a_job(body_digest="0123456789abcdef", deadline_ms=100, deadline_source="body"))
    long = refused(full, a_job(body_digest="1123456789abcdef", deadline_ms=60_000, deadline_source="body"))
    assert (short.retry_ms, bool(long.retry_ms)) == (0, True)
    assert short.shared_hints_ms is long.shared_hints_ms is None
