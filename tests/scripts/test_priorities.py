"""Tests of priorities: the order within a tenant's queue, and batch jobs, which give way to all others."""

import pytest

from shared.jobs.job import ClaimedJob
from shared.jobs.states import JobState
from shared.store import keys
from tests.scripts.test_groups import put, set_group
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    claim_one,
    heartbeat,
    pass_time,
    reconfigure,
    view_of,
)

QUEUE = keys.queue_name("blue", MODEL)


@pytest.fixture
def pool(store, settings):
    """A pool of one worker, with bounds that no test reaches."""
    reconfigure(store, settings, max_queue_size=1_000, max_inflight=4_000, max_queue_tokens=10**9)
    heartbeat(store)
    return store


def offer(store, tenant: str, priority: int, **fields) -> str:
    return admitted(store, a_job(tenant, priority=priority, **({"deadline_ms": 600_000} | fields)))


def turns(store, count: int) -> list[str]:
    """Run `count` jobs one after the other; return their ids."""
    order = []
    for _ in range(count):
        job = claim_one(store)
        store.settle(an_ending(job.held), "w1")
        order.append(job.id)
    return order


def members(store, key: str) -> list[str]:
    return [raw.decode() for raw in store.client.zrange(key, 0, -1)]


def test_a_tenants_queue_is_ordered_by_priority_and_then_by_latest_start(pool):
    batch, late, usual, soon, urgent_late, urgent = (
        offer(pool, "blue", priority, latest_start_ms=start_ms)
        for priority, start_ms in [(-1, 1), (0, 500_000), (0, 400_000), (0, 2), (1, 500_000), (1, 400_000)]
    )
    assert members(pool, keys.order(QUEUE)) == [urgent, urgent_late, soon, usual, late, batch]
    assert turns(pool, 6) == [urgent, urgent_late, soon, usual, late, batch]


@pytest.mark.parametrize("priority", [-1, 0, 1])
def test_a_score_is_an_exact_integer_from_which_the_latest_start_is_known(pool, priority):
    job = offer(pool, "blue", priority)
    latest_us = int(pool.client.hget(keys.rq_job(job), "penstock_latest_us"))
    score = pool.client.zscore(keys.order(QUEUE), job)
    assert abs(score) < 2**53
    assert int(score) + priority * 2**52 == latest_us


def test_a_high_priority_gains_no_turn_over_other_tenants(pool):
    urgent = {offer(pool, "ann", 1) for _ in range(6)}
    for _ in range(6):
        offer(pool, "bob", 0)
    order = turns(pool, 12)
    assert [job in urgent for job in order] == [True, False] * 6


@pytest.mark.passing_time
def test_a_batch_job_starts_only_after_all_tenants_other_jobs_even_those_that_come_later(pool):
    flood = [offer(pool, "ann", -1, max_tokens=4_000) for _ in range(4)]
    mixed = offer(pool, "cyd", -1)
    assert turns(pool, 1) == flood[:1]
    others = [offer(pool, tenant, priority) for tenant, priority in [("bob", 0), ("cyd", 1), ("dan", 0)] * 3]
    assert set(turns(pool, 9)) == set(others)
    assert set(turns(pool, 4)) == {mixed, *flood[1:]}


def test_tenants_with_only_batch_jobs_share_what_is_left_by_their_service(pool):
    for tenant in ("ann", "bob"):
        for _ in range(4):
            offer(pool, tenant, -1)
    assert [view_of(pool, job).tenant for job in turns(pool, 8)] == ["ann", "bob"] * 4


def test_a_tenant_is_in_the_batch_set_only_while_all_its_queued_jobs_are_batch_jobs(pool):
    batch = offer(pool, "blue", -1)
    assert (members(pool, keys.active(MODEL)), members(pool, keys.batch(MODEL))) == ([], ["blue"])
    other = offer(pool, "blue", 0)
    assert (members(pool, keys.active(MODEL)), members(pool, keys.batch(MODEL))) == (["blue"], [])
    pool.cancel(other)
    assert (members(pool, keys.active(MODEL)), members(pool, keys.batch(MODEL))) == ([], ["blue"])
    pool.cancel(batch)
    assert pool.client.exists(keys.active(MODEL), keys.batch(MODEL)) == 0


def test_a_group_gives_way_with_its_batch_members_and_not_with_the_others(pool):
    set_group(pool, "team")
    put(pool, "team", "ann", "bob")
    batch = offer(pool, "ann", -1)
    other = offer(pool, "cyd", 0)
    assert (members(pool, keys.active(MODEL)), members(pool, keys.batch(MODEL))) == (["cyd"], ["@team"])
    of_team = offer(pool, "bob", 0)
    assert members(pool, keys.batch(f"{MODEL}@team")) == ["ann"]
    assert set(members(pool, keys.active(MODEL))) == {"cyd", "@team"}
    assert turns(pool, 3)[2] == batch
    assert {other, of_team} == {job for job in (other, of_team) if view_of(pool, job).state == JobState.SUCCEEDED}


def test_a_group_whose_last_other_job_was_claimed_gives_way_again(pool):
    set_group(pool, "team")
    put(pool, "team", "ann", "bob")
    batch, of_team = offer(pool, "ann", -1), offer(pool, "bob", 0)
    assert turns(pool, 1) == [of_team]
    other = offer(pool, "cyd", 0)
    assert turns(pool, 2) == [other, batch]


def test_a_tenant_that_joins_a_group_brings_its_batch_jobs(pool):
    set_group(pool, "team")
    batch, other = offer(pool, "ann", -1), offer(pool, "bob", 0)
    put(pool, "team", "ann")
    pool.reconcile("ann", MODEL)
    assert members(pool, keys.batch(f"{MODEL}@team")) == ["ann"]
    assert members(pool, keys.batch(MODEL)) == ["@team"]
    assert turns(pool, 2) == [other, batch]


def test_no_batch_job_starts_beside_another_job_that_is_too_large_for_the_free_cells(pool):
    offer(pool, "ann", -1)
    large = offer(pool, "bob", 0, max_tokens=1_000)
    assert claim(pool, cells_free=200) == []
    assert claim_one(pool).id == large


def test_no_batch_job_gets_ahead_of_its_tenants_job_on_its_last_attempt(store, settings):
    reconfigure(store, settings, max_attempts=2)
    heartbeat(store)
    first, second = offer(store, "ann", 0), offer(store, "ann", 0)
    assert {claim_one(store, f"dead{number}").id for number in range(2)} == {first, second}
    pass_time(store, settings.lease_ms + 2_000)
    assert store.reap().requeued == 2
    heartbeat(store)
    held = claim_one(store)
    offer(store, "ann", -1)
    # The other job may not run beside the first one that is on its last attempt.
    assert claim(store) == []
    store.settle(an_ending(held.held), "w1")
    assert claim_one(store).id in {first, second} - {held.id}


@pytest.mark.parametrize("priority", [-1, 1])
def test_a_requeued_job_keeps_its_priority(pool, priority):
    job = offer(pool, "blue", priority)
    held = claim_one(pool)
    other = offer(pool, "blue", 0)
    assert pool.release("w1", [held.held]) == 1
    assert turns(pool, 2) == ([job, other] if priority == 1 else [other, job])


def test_a_batch_job_expires_at_its_deadline_while_others_keep_it_waiting(pool):
    batch = offer(pool, "ann", -1, deadline_ms=5_000)
    for _ in range(3):
        offer(pool, "bob", 0)
    assert turns(pool, 2)
    advance_clock(pool, 5_001)
    pool.reap()
    assert view_of(pool, batch).state == JobState.EXPIRED


@pytest.mark.parametrize(("before", "after"), [(-1, 0), (0, -1), (-1, -1), (-1, 1)])
def test_a_job_supersedes_one_of_another_priority(pool, before, after):
    old = offer(pool, "ann", before, supersede_digest="draft")
    new = offer(pool, "ann", after, supersede_digest="draft")
    assert view_of(pool, old).code == "superseded"
    assert turns(pool, 1) == [new]


def test_a_tenant_gains_no_turns_from_the_time_in_which_its_batch_jobs_waited(pool):
    offer(pool, "ann", -1)
    for _ in range(20):
        offer(pool, "bob", 0)
    turns(pool, 10)
    mine = {offer(pool, "ann", 0) for _ in range(10)}
    order = [job in mine for job in turns(pool, 20)]
    assert all(abs(sum(order[:end]) - end / 2) <= 1 for end in range(1, 21))


def test_jobs_that_were_stored_before_there_were_priorities_keep_their_order(pool):
    """They have no field for the priority, and their score is their latest start."""
    first, second = offer(pool, "blue", 0, latest_start_ms=1_000), offer(pool, "blue", 0, latest_start_ms=2_000)
    assert not pool.client.hexists(keys.rq_job(first), "penstock_priority")
    urgent = offer(pool, "blue", 1, latest_start_ms=3_000)
    assert turns(pool, 3) == [urgent, first, second]


def leased(store, room: int) -> list[ClaimedJob]:
    """Claim jobs for all free slots of a worker."""
    return claim(store, room=room, cells_free=100_000)


@pytest.mark.passing_time
def test_a_worker_that_cannot_pause_keeps_a_tenth_of_its_slots_from_batch_jobs_while_other_jobs_come(pool):
    heartbeat(pool, slots=20, facts={"can_pause": 0})
    other = offer(pool, "bob", 0)
    batch = [offer(pool, "ann", -1) for _ in range(40)]
    running = leased(pool, 20)
    assert [job.id for job in running] == [other, *batch[:17]]
    later = [offer(pool, "bob", 0), offer(pool, "cyd", 0)]
    running += leased(pool, 2)
    assert [job.id for job in running[18:]] == later
    for job in running:
        pool.settle(an_ending(job.held), "w1")
    pass_time(pool, 31_000, beating="w1")
    heartbeat(pool, slots=20, facts={"can_pause": 0})
    assert [job.id for job in leased(pool, 20)] == batch[17:37]


@pytest.mark.parametrize(("slots", "can_pause"), [(20, 1), (9, 0)])
def test_a_worker_that_pauses_or_has_few_slots_keeps_none_from_batch_jobs(pool, slots, can_pause):
    heartbeat(pool, slots=slots, facts={"can_pause": can_pause})
    offer(pool, "bob", 0)
    for _ in range(30):
        offer(pool, "ann", -1)
    assert len(leased(pool, slots)) == slots


def test_without_other_jobs_batch_jobs_get_all_slots(pool):
    heartbeat(pool, slots=20, facts={"can_pause": 0})
    for _ in range(30):
        offer(pool, "ann", -1)
    assert len(leased(pool, 20)) == 20
