"""Tests that a job goes to a worker that has computed the beginning of its prompt, without harm to other jobs."""

import pytest

from shared.store import keys
from shared.store.replies import ClaimRequest, Rings
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    an_ending,
    claim,
    heartbeat,
    hold_clock,
)

SHORT, LONG, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"


def offer(store, prefix: str, tenant: str = "blue", **fields) -> str:
    """Admit a job whose prompt has these beginnings. Jobs of one tenant start in the order of their offers."""
    advance_clock(store, 1)
    return admitted(store, a_job(tenant, prefix=prefix, **fields))


def ran(store, worker: str, prefix: str, **fields) -> None:
    """Let a worker run a job with this prompt to its end."""
    job_id = offer(store, prefix, **fields)
    (job,) = claim(store, worker, room=1)
    assert job.id == job_id
    store.settle(an_ending(job.held), worker)
    claim(store, worker, room=1)
    store.client.delete(keys.wake(MODEL), keys.bell("w1"), keys.bell("w2"))


def rings(store, worker: str) -> Rings:
    return store.wait_for_work(worker, MODEL, timeout_s=0.01)


@pytest.fixture
def pool(store):
    """A store with two workers. Time passes only between offers."""
    hold_clock(store)
    for worker in ("w1", "w2"):
        heartbeat(store, worker, slots=2)
    return store


def test_a_worker_is_woken_for_a_prompt_that_it_has_begun(pool):
    ran(pool, "w2", SHORT)
    offer(pool, f"{SHORT} {LONG}")
    assert rings(pool, "w1") == Rings()
    assert rings(pool, "w2") == Rings(for_prefix=True)


def test_the_worker_with_the_longest_beginning_is_woken(pool):
    ran(pool, "w1", f"{SHORT} {LONG}")
    ran(pool, "w2", f"{SHORT} {OTHER}")
    offer(pool, f"{SHORT} {LONG}")
    assert [rings(pool, worker) for worker in ("w2", "w1")] == [Rings(), Rings(for_prefix=True)]


@pytest.mark.parametrize("reason", ["full", "woken already", "drains", "silent", "has computed other prompts since"])
def test_any_worker_is_woken_if_the_one_with_the_prompt_cannot_take_it(pool, reason):
    ran(pool, "w2", SHORT)
    if reason == "full":
        offer(pool, OTHER)
        assert len(claim(pool, "w2", room=1)) == 1
    elif reason == "woken already":
        offer(pool, SHORT)
    elif reason == "drains":
        heartbeat(pool, "w2", slots=2, draining=True)
    elif reason == "silent":
        advance_clock(pool, 6_000)
        heartbeat(pool, "w1", slots=2)
    else:
        for number in range(2):
            ran(pool, "w2", f"{number:012d}")
    pool.client.delete(keys.wake(MODEL))
    offer(pool, SHORT)
    assert pool.client.llen(keys.wake(MODEL)) == 1


def test_a_claim_prefers_a_job_of_the_tenant_whose_prompt_the_worker_has_begun(pool):
    ran(pool, "w1", f"{SHORT} {LONG}")
    cold, begun, whole = (offer(pool, prefix) for prefix in ("", SHORT, f"{SHORT} {LONG}"))
    assert [job.id for job in claim(pool, "w1", room=3)] == [whole, begun, cold]


def test_a_head_is_passed_four_times_at_most(pool):
    ran(pool, "w1", SHORT)
    cold, *begun = (offer(pool, prefix) for prefix in (OTHER, *[SHORT] * 6))
    claimed = [job.id for _ in range(7) for job in claim(pool, "w1", room=1)]
    assert claimed == [*begun[:4], cold, *begun[4:]]


def test_a_head_that_has_to_start_soon_is_not_passed(pool):
    ran(pool, "w1", SHORT)
    cold, begun = (offer(pool, prefix, latest_start_ms=900) for prefix in (OTHER, SHORT))
    assert [job.id for job in claim(pool, "w1", room=2)] == [cold, begun]


RATES = {"prefill_tps": 1_000, "tpot_ms": 100}


def test_a_job_passes_no_head_that_would_then_be_late(store):
    """Whether a worker holds a prompt or not, both jobs succeed in its only slot."""
    heartbeat(store, "w1", slots=1, facts=RATES)
    ran(store, "w1", SHORT)
    head = offer(store, OTHER, max_tokens=50, deadline_ms=20_000, cost_mwt=None)
    offer(store, SHORT, max_tokens=300, deadline_ms=300_000, cost_mwt=None)
    assert [job.id for job in claim(store, "w1", room=1)] == [head]


@pytest.mark.parametrize("late", ["head", "job behind it"])
def test_a_job_passes_none_that_would_then_miss_its_start_deadline(store, late):
    heartbeat(store, "w1", slots=1, facts=RATES)
    ran(store, "w1", SHORT)
    named = {"start_within_ms": 30_000, "start_named": True}
    head = offer(store, OTHER, **(named if late == "head" else {}))
    if late != "head":
        offer(store, OTHER, **named)
    offer(store, SHORT, max_tokens=400)
    assert [job.id for job in claim(store, "w1", room=1)] == [head]


def test_a_job_passes_no_job_of_a_higher_priority_and_none_of_another_tenant(pool):
    ran(pool, "w1", SHORT)
    urgent = offer(pool, OTHER, priority=1)
    offer(pool, SHORT)
    assert [job.id for job in claim(pool, "w1", room=1)] == [urgent]
    quiet = offer(pool, OTHER, tenant="quiet")
    assert [job.id for job in claim(pool, "w1", room=1)] == [quiet]


def test_a_job_that_does_not_fit_the_free_cells_passes_no_other(pool):
    ran(pool, "w1", SHORT)
    cold = offer(pool, OTHER)
    offer(pool, SHORT, max_tokens=500)
    assert [job.id for job in claim(pool, "w1", room=1, cells_free=100)] == [cold]


def test_a_worker_whose_slots_are_full_wakes_another_for_the_jobs_that_are_left(pool):
    ran(pool, "w2", SHORT)
    offer(pool, SHORT)
    offer(pool, OTHER)
    pool.client.delete(keys.wake(MODEL))
    assert len(claim(pool, "w2", room=1)) == 1
    assert rings(pool, "w1") == Rings(pool=True)


@pytest.mark.parametrize("reason", ["too few cells", "sets the tenant aside"])
def test_a_worker_that_leaves_a_job_although_a_slot_is_free_wakes_another_one(pool, reason):
    ran(pool, "w2", SHORT)
    offer(pool, SHORT)
    cells, aside = (5, ()) if reason == "too few cells" else (4_096, ("blue",))
    for number in range(2):
        given = {"room": 1, "cells_free": cells, "held": [], "aside": aside}
        assert pool.contend("w2", ClaimRequest(f"claim{number}", MODEL, **given)).started == []
    assert rings(pool, "w1") == Rings(pool=True)
    pool.client.delete(keys.bell("w2"))
    offer(pool, SHORT)
    assert rings(pool, "w1") == Rings(pool=True)


def test_the_beginnings_of_a_pool_are_forgotten_after_ten_minutes_although_it_is_in_use(pool):
    ran(pool, "w1", SHORT)
    pool.client.expire(keys.prefixes(MODEL), 5)
    ran(pool, "w2", OTHER)
    assert pool.client.ttl(keys.prefixes(MODEL)) <= 5


def test_a_job_whose_text_was_erased_has_no_digest(pool):
    ran(pool, "w1", SHORT)
    (job_id,) = (raw.decode() for raw in pool.client.zrange(keys.jobs("blue"), 0, -1))
    assert pool.erase(job_id)
    assert pool.client.hget(keys.rq_job(job_id), "penstock_prefix") is None


def test_few_workers_and_prompts_are_remembered(pool):
    for number in range(6):
        heartbeat(pool, f"w{number}", slots=3)
        ran(pool, f"w{number}", SHORT)
    assert pool.client.hget(keys.prefixes(MODEL), SHORT).split() == [b"w5", b"w4", b"w3", b"w2"]
    pool.client.hset(keys.prefixes(MODEL), mapping={f"other{number}": "w0" for number in range(4_096)})
    for number in range(5):
        ran(pool, "w1", f"{number:012d}")
    assert pool.client.hlen(keys.prefixes(MODEL)) == 5
    held = pool.client.hget(keys.worker("w1"), "prefixes").decode().split(",")
    assert held == [f"{number:012d}" for number in (4, 3, 2)]


def test_a_longer_prompt_takes_the_place_of_its_beginning(pool):
    for prefix in (SHORT, OTHER, f"{SHORT} {LONG}"):
        ran(pool, "w1", prefix)
    assert pool.client.hget(keys.worker("w1"), "prefixes").decode().split(",") == [f"{SHORT} {LONG}", OTHER]


def test_a_pool_with_one_worker_keeps_no_list_of_workers(store):
    heartbeat(store, "w1")
    ran(store, "w1", SHORT)
    assert not store.client.exists(keys.prefixes(MODEL))


@pytest.mark.parametrize("damage", ["wrong type", "names", "worker's prefixes", "worker's slots", "job's prefix"])
def test_spoiled_beginnings_stop_no_job(pool, damage):
    ran(pool, "w2", f"{SHORT} {LONG}")
    first = offer(pool, SHORT)
    if damage == "wrong type":
        pool.client.set(keys.prefixes(MODEL), "abc")
    elif damage == "names":
        pool.client.hset(keys.prefixes(MODEL), SHORT, "x " * 100_000)
    elif damage == "worker's prefixes":
        pool.client.hset(keys.worker("w2"), "prefixes", ",%s ,," * 10_000)
    elif damage == "worker's slots":
        pool.client.hset(keys.worker("w2"), mapping={"free_slots": "nan", "slots": "1e300"})
    else:
        pool.client.hset(keys.rq_job(first), "penstock_prefix", "abcdefabcdef " * 10_000)
    second = offer(pool, SHORT)
    assert {job.id for job in claim(pool, "w2", room=2)} == {first, second}
    assert len(pool.client.hget(keys.worker("w2"), "prefixes")) < 40_000
    assert pool.client.hlen(keys.prefixes(MODEL)) <= 5
