"""Tests of claims in a mixed fleet: a slow worker leaves a job to a faster one that can finish it in time."""

import pytest

from shared.jobs.job import Usage
from shared.store import keys
from shared.store.replies import Rings
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    claim,
    claim_one,
    reconfigure,
    stat,
)

FAST = {"mu_wtps": 1_000, "prefill_tps": 4_000, "tpot_ms": 10}
SLOW = {"mu_wtps": 250, "prefill_tps": 1_000, "tpot_ms": 40}


def heartbeat(store, worker: str, rates: dict[str, int], **overrides) -> None:
    store.renew(a_heartbeat(worker, slots=4, cells=8_000, facts=rates, **overrides), [])


@pytest.fixture
def fleet(store, settings, clock):
    """A fast and a slow worker, and a tenant whose answers have 100 tokens: 1 s on the fast worker, 4 s on the slow."""
    reconfigure(store, settings, max_inflight=1_000, max_queue_size=100)
    heartbeat(store, "fast", FAST)
    for _ in range(8):
        admitted(store, long_job("blue"))
        usage = Usage(10, 0, 100, 1, 1, 1)
        store.settle(an_ending(claim_one(store, "fast", cells_free=8_000).held, usage=usage), "fast")
    heartbeat(store, "slow", SLOW)
    return store


def long_job(tenant: str, deadline_ms: int = 600_000, **overrides):
    return a_job(tenant, max_tokens=1_000, deadline_ms=deadline_ms, **overrides)


def ids(jobs) -> list[str]:
    return [job.id for job in jobs]


def test_a_slow_worker_leaves_a_job_that_it_would_finish_too_late(fleet):
    job_id = admitted(fleet, long_job("blue", 3_000))
    assert claim(fleet, "slow", room=4, cells_free=8_000) == []
    assert ids(claim(fleet, "fast", room=4, cells_free=8_000)) == [job_id]


def test_a_slow_worker_leaves_a_job_that_it_would_finish_only_just_in_time(fleet):
    job_id = admitted(fleet, long_job("blue", 4_500))
    assert claim(fleet, "slow", room=4, cells_free=8_000) == []
    assert ids(claim(fleet, "fast", room=4, cells_free=8_000)) == [job_id]


def test_a_slow_worker_takes_a_job_that_it_can_finish_in_time(fleet):
    job_id = admitted(fleet, long_job("blue", 6_000))
    assert ids(claim(fleet, "slow", cells_free=8_000)) == [job_id]


def test_the_worker_that_a_job_is_left_to_is_woken_once(fleet):
    admitted(fleet, long_job("blue", 3_000))
    for _ in range(3):
        claim(fleet, "slow", room=4, cells_free=8_000)
    assert fleet.wait_for_work("fast", "none", timeout_s=1) == Rings(left_a_job=True)
    assert fleet.wait_for_work("fast", "none", timeout_s=0.01) == Rings()


def test_a_slow_worker_takes_the_jobs_behind_the_one_that_it_leaves(fleet):
    left = admitted(fleet, long_job("blue", 3_000))
    behind = admitted(fleet, long_job("blue", 60_000))
    other = admitted(fleet, long_job("green", 60_000))
    assert sorted(ids(claim(fleet, "slow", room=4, cells_free=8_000))) == sorted([behind, other])
    assert ids(claim(fleet, "fast", room=4, cells_free=8_000)) == [left]


def test_a_job_that_not_even_the_fastest_worker_can_finish_with_a_usual_answer_is_not_left(fleet, clock):
    # Too late for both workers: the slow one may as well start it, since the answer may be short.
    job_id = admitted(fleet, long_job("blue", 3_000))
    clock.set(2_200)
    heartbeat(fleet, "fast", FAST)
    fleet.client.hset(keys.tenant("blue"), "len_p20", 1)
    assert ids(claim(fleet, "slow", cells_free=8_000)) == [job_id]


@pytest.mark.parametrize(
    "change",
    {
        "is silent": lambda store, clock: (clock.set(5_500), heartbeat(store, "slow", SLOW)),
        "drains": lambda store, _: heartbeat(store, "fast", FAST, draining=True),
        "has left": lambda store, _: store.farewell("fast", MODEL),
        "is as slow": lambda store, _: heartbeat(store, "fast", SLOW),
        "has too few cells": lambda store, _: store.renew(a_heartbeat("fast", cells=900, facts=FAST), []),
    }.items(),
    ids=lambda item: item[0],
)
def test_no_job_is_left_to_a_worker_that_cannot_take_it(fleet, clock, change):
    job_id = admitted(fleet, long_job("blue", 8_000))
    # With 90 % of the answers at most 250 tokens long, the slow worker needs up to 10 s.
    fleet.client.hset(keys.tenant("blue"), "len_p90", 250)
    assert claim(fleet, "slow", cells_free=8_000) == []
    change[1](fleet, clock)
    assert ids(claim(fleet, "slow", cells_free=8_000)) == [job_id]


def test_a_job_that_would_be_late_only_with_a_long_answer_is_left_too(fleet):
    fleet.client.hset(keys.tenant("blue"), "len_p90", 250)
    admitted(fleet, long_job("blue", 8_000))
    assert claim(fleet, "slow", cells_free=8_000) == []


def test_equal_workers_leave_each_other_nothing(fleet):
    heartbeat(fleet, "other", FAST | {"tpot_ms": 11})
    job_id = admitted(fleet, long_job("blue", 1_900))
    fleet.client.hset(keys.tenant("blue"), "len_p90", 180)
    assert ids(claim(fleet, "other", cells_free=8_000)) == [job_id]


def test_a_job_that_the_fastest_worker_can_finish_is_not_ended_as_hopeless(fleet, clock):
    # By the mean rates of the pool, which are those of the slow worker for the most part, the job would be hopeless.
    for number in range(20):
        heartbeat(fleet, f"slow{number}", SLOW)
    job_id = admitted(fleet, long_job("blue", 60_000))
    admitted(fleet, long_job("green", 60_000))
    clock.set(58_000)
    heartbeat(fleet, "slow", SLOW)
    heartbeat(fleet, "fast", FAST)
    assert claim(fleet, "slow", cells_free=8_000) == []
    assert job_id in ids(claim(fleet, "fast", room=4, cells_free=8_000))


def test_a_claim_looks_at_a_bounded_number_of_jobs(fleet, clock):
    for number in range(40):
        admitted(fleet, long_job("blue", 100_000, cost_mwt=100, latest_start_ms=100 + number))
    clock.set(97_500)
    heartbeat(fleet, "slow", SLOW)
    heartbeat(fleet, "fast", FAST)
    behind = admitted(fleet, long_job("blue", 600_000, cost_mwt=100))
    assert claim(fleet, "slow", room=4, cells_free=8_000) == []
    assert behind in ids(claim(fleet, "fast", room=41, cells_free=80_000))


@pytest.mark.parametrize("spoiled", ["abc", "nan", "-1", "1e300", ""])
@pytest.mark.parametrize("field", ["fast_worker", "fast_prefill_tps", "fast_tpot_ms", "fast_cells", "fast_beat_ms"])
def test_a_spoiled_record_of_the_fastest_worker_keeps_no_job_from_the_others_for_long(fleet, clock, field, spoiled):
    job_id = admitted(fleet, long_job("blue", 60_000))
    fleet.client.hset(keys.books(MODEL), field, spoiled)
    clock.set(58_000)
    heartbeat(fleet, "slow", SLOW)
    claim(fleet, "slow", cells_free=8_000)
    heartbeat(fleet, "fast", FAST)
    assert ids(claim(fleet, "fast", cells_free=8_000)) in ([job_id], [])
    heartbeat(fleet, "fast", FAST)
    stored = fleet.client.hmget(keys.books(MODEL), "fast_worker", "fast_tpot_ms")
    assert stored == [b"fast", b"10"]
    assert stat(fleet, "executed") >= 8


def test_the_pools_rates_are_weighted_by_the_work_that_each_worker_does(fleet):
    rates = [float(value) for value in fleet.client.hmget(keys.books(MODEL), "mu_wtps", "prefill_tps", "tpot_ms")]
    # Four fifths of the work is done at .25 ms per prompt token and 10 ms per output token.
    assert rates == pytest.approx([1_250, 1_000 / (0.8 * 0.25 + 0.2 * 1.0), 0.8 * 10 + 0.2 * 40])
