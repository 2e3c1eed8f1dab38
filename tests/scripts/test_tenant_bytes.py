"""Tests the bound on the memory of the store that one tenant's jobs and results take."""

import pytest

from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.jobs.outcomes import Refusal, Refused
from shared.jobs.tenant_policy import TenantPolicy
from shared.store import keys
from shared.store.replies import Admitted
from shared.store.store import Store
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    contents,
    heartbeat,
    reconfigure,
    refused,
    view_of,
)

HOUR_MS = 3_600_000


def end_one(store, text="some words", **overrides):
    """Run one job from admission to its end; return its id."""
    job_id = admitted(store, a_job(**overrides))
    claimed = claim_one(store)
    assert claimed.id == job_id
    store.settle(an_ending(claimed.held, text=text), "w1")
    return job_id


def counted(store, tenant="blue"):
    """Return the bytes that are counted for a tenant's inflight and for its ended jobs."""
    live, ended = store.client.hmget(keys.kept(tenant), "live", "ended")
    return int(live or 0), int(ended or 0)


def memory_of(store, *job_ids, tenant="blue"):
    """Return the memory of all keys of the jobs, and what they take of the collections that the tenant's jobs share."""
    names = [key for key in store.client.scan_iter("*", count=1_000) if any(i.encode() in key for i in job_ids)]
    names += [keys.jobs(tenant).encode(), f"rq:finished:{tenant}.{MODEL}".encode()]
    return sum(store.client.memory_usage(key, samples=0) or 0 for key in names)


@pytest.fixture
def small(store, settings):
    """A store in which a tenant's jobs may take 100,000 bytes."""
    reconfigure(store, settings, max_tenant_bytes=100_000)
    heartbeat(store)
    return store


def test_a_tenant_whose_results_reach_its_bound_is_refused_until_the_oldest_expire(small):
    while counted(small)[1] < 80_000:
        end_one(small, "x" * 15_000)
    answer = refused(small, a_job(payload={"prompt": "y" * 20_000}))
    assert (answer.reason, answer.limit, answer.max) == (Refusal.TENANT_BYTES_FULL, "tenant_bytes", 100_000)
    assert answer.value == sum(counted(small))
    # The first period ends within two minutes with the event streams of a minute, and the results expire after an hour.
    assert 50 <= answer.retry_hint_ms <= 60_000
    advance_clock(small, HOUR_MS + HOUR_MS // 16)
    heartbeat(small)
    admitted(small, a_job(payload={"prompt": "y" * 20_000}))
    assert counted(small)[1] == 0


def test_one_tenants_results_take_no_room_from_another(small):
    while counted(small)[1] < 80_000:
        end_one(small, "x" * 15_000)
    refused(small, a_job(payload={"prompt": "y" * 20_000}))
    end_one(small, tenant="red", payload={"prompt": "y" * 20_000})


def test_a_tenant_with_nothing_in_the_store_gets_one_job_whatever_its_size(small):
    admitted(small, a_job(payload={"prompt": "y" * 200_000}))
    assert refused(small, a_job()).reason is Refusal.TENANT_BYTES_FULL


def test_the_answer_that_a_job_may_generate_counts_while_the_job_is_inflight(small):
    admitted(small, a_job())
    long = a_job(payload={"prompt": "x", "logprobs": 20}, max_tokens=500)
    assert refused(small, long).reason is Refusal.TENANT_BYTES_FULL
    admitted(small, a_job(max_tokens=500))


def test_a_policy_sets_a_bound_for_one_tenant(small):
    Tenants(small.client).set("blue", TenantPolicy(max_bytes=8_000))
    admitted(small, a_job())
    assert refused(small, a_job(payload={"prompt": "y" * 5_000})).max == 8_000


def test_a_quote_has_the_same_verdict(small):
    admitted(small, a_job(payload={"prompt": "y" * 90_000}))
    job = a_job(payload={"prompt": "y" * 20_000})
    before = contents(small)
    answer = small.quote(job)
    assert answer.refused is not None
    assert answer.refused.reason is refused(small, job).reason is Refusal.TENANT_BYTES_FULL
    assert contents(small) == before


def test_a_request_that_is_kept_counts_until_it_is_erased_or_expires(small):
    request = {"messages": "y" * 30_000}
    end_one(small, payload=request)
    without = counted(small)[1]
    job_id = end_one(small, payload=request, keeps_request=True)
    assert without + 30_000 <= counted(small)[1] - without <= without + 30_020
    small.erase(job_id)
    assert counted(small)[1] - without < without
    assert find_breaches(small.client) == []


def test_erasing_a_result_makes_room(small):
    end_one(small)
    before = counted(small)
    job_id = end_one(small, "x" * 50_000)
    assert counted(small)[1] > before[1] + 50_000
    small.erase(job_id)
    assert before[1] < counted(small)[1] < before[1] + 10_000
    small.erase(job_id)
    assert counted(small)[1] < before[1] + 10_000


def test_every_way_to_end_gives_back_what_the_job_might_have_taken(small):
    canceled, expired, lapsed = (admitted(small, a_job(tenant)) for tenant in ("canceled", "expired", "lapsed"))
    small.cancel(canceled)
    advance_clock(small, 60_001)
    small.reap()
    for tenant in ("canceled", "expired", "lapsed"):
        live, ended = counted(small, tenant)
        assert live == 0
        assert 0 < ended < 4_000
    assert expired != lapsed


def test_a_repeated_admission_and_a_repeated_settle_count_once(small):
    job = a_job()
    admitted(small, job)
    once = counted(small)
    admitted(small, job)
    assert counted(small) == once
    claimed = claim_one(small)
    ending = an_ending(claimed.held)
    small.settle(ending, "w1")
    once = counted(small)
    small.settle(ending, "w1")
    assert counted(small) == once


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("some words", {}),
        ("x" * 20_000, {}),
        ("some words", {"idem_digest": "d" * 64, "body_digest": "e" * 64}),
        ("some words", {"metadata": {str(i): "v" * 500 for i in range(16)}}),
        ("some words", {"key_label": "a-key", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}),
    ],
)
def test_what_is_counted_for_an_ended_job_is_about_the_memory_that_it_takes(store, text, overrides):
    heartbeat(store)
    ids = [end_one(store, text, **overrides)]
    if "idem_digest" in overrides:
        ids.append("d" * 64)
    actual = memory_of(store, *ids)
    assert actual / 1.5 <= counted(store)[1] <= actual * 1.5


def test_what_is_counted_for_a_queued_job_is_at_least_the_memory_that_it_takes(store):
    heartbeat(store)
    job_id = admitted(store, a_job(payload={"prompt": "x" * 20_000}))
    assert memory_of(store, job_id) / 1.1 <= counted(store)[0] <= memory_of(store, job_id) * 1.5


@pytest.mark.passing_time
def test_a_count_that_another_program_has_spoiled_stops_nobody_and_is_repaired(small):
    claimed_id = admitted(small, a_job())
    small.client.set(keys.kept("blue"), "no hash", ex=60)
    admitted(small, a_job())
    small.client.hset(keys.kept("blue"), mapping={"live": "abc", "ended": "-7", "next_s": "1e300", "12x": "y"})
    claimed = claim_one(small)
    assert claimed.id == claimed_id
    small.settle(an_ending(claimed.held), "w1")
    admitted(small, a_job())
    small.client.delete(keys.kept("blue"))
    small.reconcile("blue", MODEL)
    bytes_of = [int(small.client.hget(keys.rq_job(i), "penstock_bytes")) for i in inflight_ids(small)]
    assert counted(small)[0] == sum(bytes_of)


def inflight_ids(store):
    return [raw.decode() for raw in store.client.zrange(keys.inflight(), 0, -1)]


def test_a_hostile_tenant_cannot_fill_a_small_store(store, settings):
    memory = store.client.info("memory")["used_memory"]
    before = store.client.config_get("maxmemory")["maxmemory"]
    store.client.config_set("maxmemory", memory + 8 * 2**20)
    try:
        store = Store(store.client)
        reconfigure(store, settings)
        heartbeat(store)
        answer, jobs = store.admit(a_job("hostile")), 0
        while isinstance(answer, Admitted):
            claimed = claim_one(store)
            store.settle(an_ending(claimed.held, text="x" * 200_000), "w1")
            answer, jobs = store.admit(a_job("hostile", payload={"prompt": "y" * 200_000})), jobs + 1
        assert isinstance(answer, Refused)
        assert answer.reason is Refusal.TENANT_BYTES_FULL
        assert jobs > 5
        end_one(store, "x" * 100_000, tenant="other", payload={"prompt": "y" * 200_000})
    finally:
        store.client.config_set("maxmemory", before)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ended", 10**14),
        ("ended", "abc"),
        ("next_s", 10**14),
        ("next_s", "nan"),
        ("inf", 5),
        ("a period", "1.5"),
        ("live", 2**63 - 1),
        ("live", "abc"),
    ],
)
def test_after_the_last_job_a_spoiled_count_is_recomputed_and_refuses_nobody(small, field, value):
    end_one(small)
    key = keys.kept("blue")
    periods = {name for name in small.client.hkeys(key) if name.isdigit()}
    small.client.hset(key, max(periods) if field == "a period" else field, value)
    assert small.reconcile("blue", MODEL, thorough=True) > 0
    assert find_breaches(small.client) == []
    end_one(small)
    assert counted(small)[1] <= 10_000
    assert int(small.client.hget(key, "next_s")) in {int(name) for name in small.client.hkeys(key) if name.isdigit()}


def test_a_tenant_near_its_bound_can_still_replace_a_queued_job(small):
    first = admitted(small, a_job(payload={"prompt": "y" * 60_000}, supersede_digest="k"))
    refused(small, a_job(payload={"prompt": "y" * 60_000}))
    second = admitted(small, a_job(payload={"prompt": "y" * 60_000}, supersede_digest="k"))
    assert view_of(small, first).code == "superseded"
    assert view_of(small, second).state == "queued"
    refused(small, a_job(payload={"prompt": "y" * 99_000}, supersede_digest="k"))
