"""Tests of the record of crashed workers: readiness and doctor notice a worker that restarts again and again."""

import pytest

from shared.jobs.job import new_job_id
from shared.store import keys
from shared.store.crashes import MANY, RECENT_MS, SHORT_LIFE_MS, RestartLoop, find_restart_loops
from shared.store.store import Store
from tests.support.builders import (
    MODEL,
    a_job,
    admitted,
    advance_clock,
    claim,
    heartbeat,
    hold_clock,
    pass_time,
    reconfigure,
    stat,
)

FAULT = "the duty leases failed too often"


@pytest.fixture(autouse=True)
def still(store: Store) -> None:
    """Let time stand still, so that only the tests move it."""
    hold_clock(store)


def live(store: Store, worker: str, ms: int, model: str = MODEL) -> None:
    """Let a worker send heartbeats for this long."""
    heartbeat(store, worker, model=model)
    for _ in range(ms // 1_000):
        advance_clock(store, 1_000)
        heartbeat(store, worker, model=model)


def die(store: Store, *, by: str) -> None:
    """Let a worker live for ten seconds, and end it by a fault, or kill it."""
    worker = new_job_id()
    live(store, worker, 10_000)
    if by == "fault":
        store.farewell(worker, MODEL, fault=FAULT)
    advance_clock(store, 6_000)
    store.reap()


def loops(store: Store) -> list[RestartLoop]:
    return find_restart_loops(store.client)


@pytest.mark.parametrize("by", ["fault", "kill"])
def test_a_worker_that_restarts_again_and_again_is_seen_until_one_has_lived_twice_as_long(store, by):
    for _ in range(MANY):
        assert not store.overview().workers_restart
        assert loops(store) == []
        die(store, by=by)
    (loop,) = loops(store)
    assert (loop.model, len(loop.crashes), loop.has_fault) == (MODEL, MANY, by == "fault")
    assert f"{MANY} have ended in the last 10 min after 10 to 10 s, the last one 6 s ago" in loop.sentence()
    assert (FAULT if by == "fault" else "without a farewell") in loop.sentence()
    live(store, "next", 19_000)
    assert store.overview().workers_restart
    live(store, "next", 2_000)
    assert not store.overview().workers_restart
    assert len(loops(store)) == 1
    advance_clock(store, RECENT_MS)
    assert loops(store) == []


def test_without_a_live_worker_readiness_counts_no_worker(store):
    for _ in range(MANY):
        die(store, by="fault")
    overview = store.overview()
    assert (overview.workers, overview.workers_restart) == (0, False)


def test_workers_that_are_asked_to_stop_or_whose_upstream_is_away_are_no_crashes(store):
    for number in range(2 * MANY):
        live(store, f"w{number}", 3_000)
        store.farewell(f"w{number}", MODEL)
        advance_clock(store, 6_000)
        store.reap()
    assert loops(store) == []
    assert store.client.exists(keys.crashes(MODEL)) == 0


def test_workers_that_had_only_been_silent_are_no_crashes(store):
    """The store was away, or their machine was suspended: each comes back with its name."""
    for worker in ("a", "b", "c", "d"):
        heartbeat(store, worker)
    advance_clock(store, 10_000)
    heartbeat(store, "a")
    assert store.client.hlen(keys.crashes(MODEL)) == 3
    for worker in ("b", "c", "d"):
        heartbeat(store, worker)
    assert store.client.hlen(keys.crashes(MODEL)) == 0
    assert not store.overview().workers_restart


def test_workers_that_had_lived_long_are_no_loop(store):
    for number in range(MANY):
        heartbeat(store, f"w{number}")
    for _ in range(SHORT_LIFE_MS // 4_000 + 1):
        advance_clock(store, 4_000)
        for number in range(MANY):
            heartbeat(store, f"w{number}")
    advance_clock(store, 6_000)
    heartbeat(store, "next")
    assert store.client.hlen(keys.crashes(MODEL)) == MANY
    assert loops(store) == []
    assert not store.overview().workers_restart


def test_a_worker_that_stays_keeps_the_door_ready(store):
    live(store, "stays", 1_000, model="other")
    for _ in range(MANY):
        die(store, by="fault")
    heartbeat(store, "stays", model="other")
    heartbeat(store, "next")
    assert store.overview().workers == 2
    assert not store.overview().workers_restart
    assert [loop.model for loop in loops(store)] == [MODEL]


def test_only_the_newest_ends_are_kept(store):
    for number in range(80):
        heartbeat(store, f"w{number}")
        advance_clock(store, 100)
        store.farewell(f"w{number}", MODEL, fault=FAULT)
    names = store.client.hkeys(keys.crashes(MODEL))
    assert sorted(names) == sorted(f"w{number}".encode() for number in range(48, 80))


@pytest.mark.parametrize("spoiled", ["", "soon", "1e300 5 x", "99999999999999999999 1 x", "5"])
def test_what_another_program_has_written_is_no_crash(store, spoiled):
    heartbeat(store)
    store.client.hset(keys.crashes(MODEL), mapping={f"x{number}": spoiled for number in range(MANY)})
    store.client.expire(keys.crashes(MODEL), 60)
    assert loops(store) == []
    assert not store.overview().workers_restart


def test_a_key_of_another_type_is_no_crash(store):
    heartbeat(store)
    store.client.set(keys.crashes(MODEL), "x", ex=60)
    assert loops(store) == []
    store.farewell("w1", MODEL, fault=FAULT)
    assert store.client.hlen(keys.crashes(MODEL)) == 1


def crashes(store: Store) -> int:
    return stat(store, f"crashes|{MODEL}")


def with_jobs(store: Store, worker: str, number: int) -> None:
    """Let a worker claim this many jobs."""
    heartbeat(store, worker)
    for _ in range(number):
        admitted(store, a_job(deadline_ms=600_000))
    assert len(claim(store, worker, room=number)) == number


@pytest.mark.parametrize("lease_ms", [2_000, 15_000, 60_000])
def test_a_worker_that_falls_silent_is_one_crash_once_the_leases_of_its_jobs_have_ended(
    store, settings, lease_ms, monkeypatch
):
    """All jobs of the worker are taken back at once, also those that the reaper has not reached."""
    monkeypatch.setattr("shared.store.store._REAP_LIMIT", 2)
    reconfigure(store, settings, lease_ms=lease_ms)
    for number, worker in enumerate(("a", "b")):
        with_jobs(store, worker, 3)
        pass_time(store, lease_ms - 1_500)
        store.reap()
        assert crashes(store) == number
        pass_time(store, 4_500)
        assert store.reap().requeued == 3
        assert crashes(store) == number + 1
        pass_time(store, 6_000)
        assert store.client.hget(keys.crashes(MODEL), worker).endswith(b"without a farewell")


def test_a_worker_that_ends_by_a_fault_is_one_crash_and_its_lost_jobs_are_no_other(store):
    with_jobs(store, "a", 2)
    store.farewell("a", MODEL, fault=FAULT)
    assert crashes(store) == 1
    pass_time(store, 16_500)
    assert store.reap().requeued == 2
    assert crashes(store) == 1
    heartbeat(store, "b")
    store.farewell("b", MODEL)
    assert crashes(store) == 1


def test_a_worker_that_lost_a_claim_or_was_only_silent_for_a_while_has_not_crashed(store):
    """Worker a does not name its job in its heartbeats, so the lease ends although the worker lives."""
    with_jobs(store, "a", 1)
    pass_time(store, 16_500, beating="a")
    assert store.reap().requeued == 1
    heartbeat(store, "idle")
    pass_time(store, 60_000, beating="a")
    store.reap()
    assert crashes(store) == 0


def test_a_worker_that_comes_back_and_crashes_again_is_counted_again(store):
    for number in (1, 2):
        with_jobs(store, "a", 1)
        pass_time(store, 16_500)
        store.reap()
        assert crashes(store) == number
        heartbeat(store, "a")
        assert store.client.hlen(keys.crashes(MODEL)) == 0
