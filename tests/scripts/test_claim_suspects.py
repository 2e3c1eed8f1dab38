"""Tests of jobs on their last attempt: a worker runs one of them at a time, and their tenants do not wait for it."""

import pytest

from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    claim_one,
    heartbeat,
    reconfigure,
)

LATE_MS = 5_000


@pytest.fixture
def pool(store, settings):
    """A pool in which the second attempt is the last, and whose worker w1 runs blue's suspect."""
    reconfigure(store, settings, max_attempts=2)
    heartbeat(store)
    return store


def suspects(store, tenant: str, count: int, **overrides) -> list[str]:
    """Admit jobs, let each lose a worker that runs no other, and return their ids in the order of their queue."""
    ids = [admitted(store, a_job(tenant, **overrides)) for _ in range(count)]
    lose_alone(store, ids)
    return ids


def lose_alone(store, ids: list[str]) -> None:
    """Let each job be claimed by a worker of its own, and let their leases end."""
    claimed = {claim_one(store, f"dead{number}").id for number in range(len(ids))}
    assert claimed == set(ids)
    store.client.zadd(keys.leases(), dict.fromkeys(ids, 1))
    for first in range(0, len(ids), 64):
        assert store.reap().requeued == len(ids[first : first + 64])


@pytest.mark.passing_time
def test_a_tenant_is_served_while_the_head_of_its_queue_waits_for_its_last_attempt(pool):
    first, second = suspects(pool, "blue", 2)
    others = [admitted(pool, a_job()) for _ in range(3)]
    assert [job.id for job in claim(pool, room=4)] == [first, *others]
    assert pool.client.zrange(keys.order("blue.m"), 0, -1) == [second.encode()]


@pytest.mark.passing_time
def test_a_suspect_stays_first_and_runs_as_soon_as_the_worker_has_no_other(pool):
    first, second = suspects(pool, "blue", 2)
    for _ in range(4):
        admitted(pool, a_job())
    running = claim_one(pool)
    assert running.id == first
    assert claim_one(pool).id not in {first, second}
    pool.settle(an_ending(running.held), "w1")
    assert claim_one(pool).id == second


@pytest.mark.passing_time
def test_another_worker_takes_the_suspect_that_was_passed(pool):
    first, second = suspects(pool, "blue", 2)
    admitted(pool, a_job())
    heartbeat(pool, "w2")
    assert claim_one(pool).id == first
    assert claim_one(pool, "w2").id == second


def test_a_tenant_gets_no_more_than_its_turns_by_having_a_suspect_passed(pool):
    suspects(pool, "blue", 2)
    for _ in range(4):
        admitted(pool, a_job("blue"))
        admitted(pool, a_job("green"))
    claim(pool, room=6)
    service = {
        tenant: int(pool.client.hget(keys.tenant(tenant), keys.service_field(MODEL))) for tenant in ("blue", "green")
    }
    assert abs(service["blue"] - service["green"]) <= a_job().cost_mwt


def test_a_tenant_whose_queue_has_only_suspects_is_passed(pool):
    suspects(pool, "blue", 3)
    other = admitted(pool, a_job("green"))
    jobs = claim(pool, room=4)
    assert [job.tenant for job in jobs] in (["blue", "green"], ["green", "blue"])
    assert other in {job.id for job in jobs}


@pytest.mark.passing_time
def test_a_suspect_that_is_late_ends_although_it_would_be_passed(pool):
    running, late = suspects(pool, "blue", 2, deadline_ms=LATE_MS)
    assert claim_one(pool).id == running
    after = admitted(pool, a_job())
    advance_clock(pool, LATE_MS)
    assert [job.id for job in claim(pool, room=2)] == [after]
    assert pool.client.hget(keys.rq_job(late), "penstock_state") == b"expired"
    pool.reap()


@pytest.mark.passing_time
def test_a_job_behind_a_suspect_that_needs_too_many_cells_is_skipped_as_any_other(pool):
    suspects(pool, "blue", 2)
    admitted(pool, a_job(max_tokens=4_000))
    claim_one(pool)
    assert claim(pool, cells_free=100) == []


def test_tenants_with_many_suspects_do_not_keep_a_worker_from_the_tenants_behind_them(pool):
    heartbeat(pool, slots=200)
    ids = [admitted(pool, a_job(f"t{i % 5}")) for i in range(85)]
    lose_alone(pool, ids)
    claim_one(pool)
    pool.client.hset(keys.tenant("late"), keys.service_field(MODEL), 10**9)
    last = admitted(pool, a_job("late"))
    assert [job.id for job in claim(pool)] == [last]
