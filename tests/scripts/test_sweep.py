"""Tests that jobs end although another program changed the places in which the scripts look for them."""

import pytest

from shared.accounts.tenants import Tenants
from shared.audit.invariants import find_breaches
from shared.audit.sweeper import Sweeper
from shared.jobs.outcomes import Refusal
from shared.jobs.states import JobState
from shared.settings.settings import load
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim_one,
    heartbeat,
    hold_clock,
    pass_time,
    refused,
    view_of,
)
from tests.support.cell import KEY_PREFIX

LEASE_MS, DEADLINE_MS = 15_000, 60_000


@pytest.fixture
def busy(store: Store):
    """The store, its one running job and the ids of the three queued jobs: two of blue and one of green."""
    heartbeat(store)
    running = admitted(store, a_job(deadline_ms=DEADLINE_MS))
    claimed = claim_one(store)
    assert claimed.id == running
    return store, claimed, [admitted(store, a_job(tenant)) for tenant in ("blue", "blue", "green")]


def sweep(store: Store) -> int:
    """Make one pass of the sweeper; return the number of repairs."""
    return Sweeper(store).sweep_all()


def all_ended(store: Store, ids: list[str]) -> bool:
    return all(view_of(store, job_id).ended_ms for job_id in ids)


def test_an_untouched_store_needs_no_repair(busy):
    store, *_ = busy
    assert sweep(store) == 0
    assert store.client.exists(keys.notices()) == 0


def test_a_running_job_whose_worker_died_and_whose_lease_was_deleted_is_taken_back(busy):
    store, claimed, _ = busy
    store.client.delete(keys.leases())
    assert sweep(store) == 1
    pass_time(store, LEASE_MS + 1_000)
    store.reap()
    assert view_of(store, claimed.id).state is JobState.QUEUED


def test_a_worker_that_lives_keeps_its_job_when_the_leases_are_deleted(busy):
    store, claimed, _ = busy
    store.client.delete(keys.leases())
    sweep(store)
    heartbeat(store, "w1", claimed.held)
    assert store.settle(an_ending(claimed.held), "w1").outcome == "succeeded"


def test_queued_jobs_end_at_their_deadline_although_the_deadlines_were_deleted(busy):
    store, _, queued = busy
    store.client.delete(keys.deadlines())
    assert sweep(store) == 3
    advance_clock(store, DEADLINE_MS)
    store.reap()
    assert all_ended(store, queued)


def test_the_running_count_of_a_tenant_is_counted_again_after_it_was_spoiled(busy):
    store, claimed, _ = busy
    store.client.hset(keys.tenant("blue"), "running", "abc")
    assert store.settle(an_ending(claimed.held), "w1").outcome == "succeeded"
    sweep(store)
    store.reconcile("blue", MODEL)
    assert find_breaches(store.client) == []


@pytest.mark.parametrize(
    "key",
    [
        keys.inflight(),
        keys.deadlines(),
        keys.leases(),
        keys.order(f"blue.{MODEL}"),
        keys.active(MODEL),
        keys.lists("blue"),
        keys.queues(),
        keys.tenants(),
        keys.books(MODEL),
        "rq:queues",
    ],
)
@pytest.mark.parametrize("damage", ["deleted", "wrong type"])
def test_every_job_still_ends_and_every_invariant_holds_after_a_set_was_damaged(busy, key, damage):
    store, claimed, queued = busy
    store.client.delete(key)
    if damage == "wrong type":
        store.client.set(key, "not ours")
    sweep(store)
    store.recount_workers()
    for tenant in ("blue", "green"):
        store.reconcile(tenant, MODEL)
    sweep(store)
    assert find_breaches(store.client) == []
    ran = [claimed, *(claim_one(store) for _ in queued)]
    assert {job.id for job in ran} == {claimed.id, *queued}
    for job in ran:
        assert store.settle(an_ending(job.held), "w1").outcome == "succeeded"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "resting"),
        ("state", ""),
        ("tenant", None),
        ("slug", None),
        ("tenant", "somebody-else"),
        ("deadline_ms", "abc"),
        ("deadline_ms", "1e300"),
        ("admitted_ms", "-1"),
        ("latest_us", "nan"),
        ("latest_us", str(2**60)),
    ],
)
def test_a_queued_job_whose_record_was_spoiled_is_restored_and_served(busy, field, value):
    store, _, (spoiled, *_) = busy
    if value is None:
        store.client.hdel(keys.rq_job(spoiled), f"penstock_{field}")
    else:
        store.client.hset(keys.rq_job(spoiled), f"penstock_{field}", value)
    sweep(store)
    store.reconcile("blue", MODEL)
    assert find_breaches(store.client) == []
    view = view_of(store, spoiled)
    assert (view.state, view.tenant) == (JobState.QUEUED, "blue")
    assert view.deadline_at_ms - view.admitted_ms == DEADLINE_MS
    assert spoiled in {claim_one(store).id for _ in range(3)}


def test_a_job_whose_state_was_spoiled_blocks_no_other_job_and_is_not_lost(busy):
    store, _, (spoiled, *_) = busy
    store.client.hset(keys.rq_job(spoiled), "penstock_state", "resting")
    assert claim_one(store).id != spoiled
    sweep(store)
    assert spoiled in {claim_one(store).id for _ in range(2)}


def test_a_job_that_stands_in_the_inflight_set_without_a_record_is_forgotten(busy):
    store, *_ = busy
    store.client.zadd(keys.inflight(), {"ghost": 1})
    assert sweep(store) == 1
    store.client.hincrby(keys.stats(), "ended|forgotten", -1)
    assert find_breaches(store.client) == []


def test_a_name_that_no_job_can_have_is_removed_from_the_inflight_set_and_is_not_counted(busy):
    store, *_ = busy
    store.client.zadd(keys.inflight(), {"odd name:x.y z": 0, "": 1})
    assert sweep(store) == 2
    assert find_breaches(store.client) == []


def test_a_poll_deadline_that_was_deleted_is_set_again(busy):
    store, *_ = busy
    polled = admitted(store, a_job(poll_grace_ms=2_000))
    store.client.delete(keys.polls())
    assert sweep(store) == 1
    advance_clock(store, 2_100)
    heartbeat(store)
    store.reap()
    assert view_of(store, polled).code == "abandoned"


def test_jobs_beyond_the_first_64_are_swept_too(store):
    heartbeat(store, slots=100)
    ids = [admitted(store, a_job(f"t{i % 10}")) for i in range(150)]
    store.client.delete(keys.deadlines())
    sweeper = Sweeper(store)
    sweeper.one_pass()
    assert store.client.zcard(keys.deadlines()) == len(ids)
    assert find_breaches(store.client) == []


@pytest.mark.parametrize("value", ["abc", "-1", "1e300", "inf", "nan", "", None])
def test_a_spoiled_setting_counts_as_its_default_until_the_next_sweep_restores_it(store, value):
    settings = load({"PENSTOCK_LEASE_MS": "2000"}, None)
    store.configure(settings, take_over=True)
    if value is None:
        store.client.hdel(keys.config(), "lease_ms")
    else:
        store.client.hset(keys.config(), "lease_ms", value)
    heartbeat(store)
    admitted(store, a_job())
    heartbeat(store, "w1", claim_one(store).held)
    sweep(store)
    assert store.client.hget(keys.config(), "lease_ms") == b"2000"


def test_a_lease_keeps_its_length_when_its_setting_was_spoiled_during_a_gap_of_heartbeats(store):
    hold_clock(store)
    store.configure(load({"PENSTOCK_LEASE_MS": "60000"}, None), take_over=True)
    heartbeat(store)
    admitted(store, a_job())
    job = claim_one(store)
    heartbeat(store, "w1", job.held)
    advance_clock(store, 3_000)
    heartbeat(store, "w1", job.held)
    assert store.client.hexists(keys.config(), "hold_until_ms")
    ends_ms = store.client.zscore(keys.leases(), job.id)
    store.client.hset(keys.config(), "lease_ms", "abc")
    sweep(store)
    assert store.client.hget(keys.config(), "lease_ms") == b"60000"
    assert store.client.zscore(keys.leases(), job.id) == ends_ms


def test_what_was_moved_out_of_the_way_is_kept_for_a_week_and_announced_once(busy):
    store, *_ = busy
    key = keys.order(f"blue.{MODEL}")
    store.client.set(key, "not ours")
    assert f"type {KEY_PREFIX}{key}" in store.sweep("inflight", 0).notices
    assert store.client.get(keys.spoiled(KEY_PREFIX + key)) == b"not ours"
    assert 600_000 < store.client.ttl(keys.spoiled(KEY_PREFIX + key)) <= 7 * 86_400
    store.client.delete(key)
    store.client.set(key, "again")
    sweep(store)
    assert store.sweep("inflight", 0).notices == []
    store.reconcile("blue", MODEL)
    sweep(store)


def test_a_heartbeat_in_the_future_does_not_keep_a_dead_worker_live(busy):
    store, *_ = busy
    store.client.zadd(keys.workers(), {"dead": 10**15})
    sweep(store)
    pass_time(store, 61_000, beating="w1")
    store.reap()
    assert store.client.zscore(keys.workers(), "dead") is None


def test_a_heartbeat_in_the_future_does_not_keep_a_pool_without_workers_open(store):
    heartbeat(store)
    store.client.zadd(keys.pool(MODEL), {"dead": 10**15})
    assert [breach.invariant for breach in find_breaches(store.client)] == [11]
    sweep(store)
    assert find_breaches(store.client) == []
    advance_clock(store, 6_000)
    assert refused(store, a_job()).reason is Refusal.NO_WORKER


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "-1e300"])
def test_a_tenants_last_admission_at_no_possible_time_counts_as_now(store, settings, score):
    store.client.zadd(keys.tenants(), {"odd": score})
    before_ms = store.snapshot().now_ms
    sweep(store)
    (odd,) = Tenants(store.client).list()
    assert odd.last_admission_ms is not None
    assert before_ms <= odd.last_admission_ms <= store.snapshot().now_ms
    advance_clock(store, (settings.result_ttl_s + 90_001) * 1_000)
    store.reap()
    assert Tenants(store.client).list() == ()


def test_what_is_known_of_the_last_admission_of_tenants_stays(store):
    scores = {b"never": 0.0, b"long-ago": -1_000.0, b"now": float(store.snapshot().now_ms)}
    store.client.zadd(keys.tenants(), scores)
    sweep(store)
    assert dict(store.client.zrange(keys.tenants(), 0, -1, withscores=True)) == scores


def test_a_model_heard_of_in_the_future_is_forgotten_in_its_time(store):
    heartbeat(store)
    store.client.zadd(keys.models(), {"gone": "inf"})
    sweep(store)
    advance_clock(store, 8 * 86_400_000)
    heartbeat(store)
    assert store.snapshot().models == [MODEL]


def test_one_process_sweeps_at_a_time_and_another_takes_over_when_it_stops(busy):
    store, *_ = busy
    first, second = Sweeper(store), Sweeper(store)
    first.one_pass()
    store.client.delete(keys.deadlines())
    second.one_pass()
    assert store.client.exists(keys.deadlines()) == 0
    advance_clock(store, 10_001)
    second.one_pass()
    assert store.client.zcard(keys.deadlines()) == 3
    store.client.delete(keys.deadlines())
    first.one_pass()
    assert store.client.exists(keys.deadlines()) == 0
    sweep(store)
    assert store.client.zcard(keys.deadlines()) == 3
