"""Tests the sums of the live workers' slots and rates, which heartbeats change by differences, for any fleet size."""

import random

import pytest

from shared.audit.invariants import find_breaches
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import MODEL, a_heartbeat, a_job, advance_clock, heartbeat, refused

START_MS = 1_790_000_000_000
RATES = {"mu_wtps": 100.5, "prefill_tps": 1_000, "tpot_ms": 2.5}


def slots_of(store: Store, model: str = MODEL) -> int:
    return int(store.client.hget(keys.books(model), "slots") or 0)


def rates_of(store: Store, model: str = MODEL) -> list[float | None]:
    stored = store.client.hmget(keys.books(model), "mu_wtps", "prefill_tps", "tpot_ms")
    return [None if value is None else float(value) for value in stored]


def live_slots(store: Store) -> int:
    return store.overview().slots


def test_every_worker_of_a_large_fleet_is_counted(store):
    for number in range(256):
        heartbeat(store, f"w{number}", model=f"m{number % 3}", facts=RATES)
    snapshot = store.snapshot()
    assert (snapshot.live_workers, snapshot.live_slots, len(snapshot.workers)) == (256, 1_024, 64)
    assert snapshot.capacity_wtps == 256 * 100.5
    assert [slots_of(store, f"m{number}") for number in range(3)] == [4 * 86, 4 * 85, 4 * 85]
    assert rates_of(store, "m0") == [86 * 100.5, 1_000, 2.5]
    assert store.overview().max_inflight == 4 * 1_024


def commands_of_a_heartbeat(store: Store) -> int:
    """Return how many commands the scripts of a heartbeat and a reap call, once the store has these scripts."""
    store.reap()
    store.client.config_resetstat()
    heartbeat(store, facts=RATES | {"mu_wtps": random.uniform(90, 110)})
    store.reap()
    stats = store.client.info("commandstats")
    return sum(
        entry["calls"] for name, entry in stats.items() if not name.startswith(("cmdstat_config", "cmdstat_info"))
    )


def test_a_heartbeat_costs_the_same_for_two_workers_as_for_two_hundred_and_fifty_six(store):
    store.client.set(keys.clock(), f"={START_MS}")
    heartbeat(store, facts=RATES)
    heartbeat(store, "w2", facts=RATES)
    of_two = commands_of_a_heartbeat(store)
    for number in range(3, 257):
        heartbeat(store, f"w{number}", facts=RATES)
    assert commands_of_a_heartbeat(store) == of_two


def test_a_worker_is_counted_until_its_heartbeats_stop_or_it_says_farewell(store):
    store.client.set(keys.clock(), f"={START_MS}")
    heartbeat(store, "leaves", slots=1, facts=RATES)
    heartbeat(store, "dies", slots=10, facts=RATES | {"mu_wtps": 200})
    store.client.set(keys.clock(), f"={START_MS + 3_000}")
    heartbeat(store, "stays", slots=100)
    assert (live_slots(store), rates_of(store)) == (111, [300.5, 1_000, 2.5])
    store.farewell("leaves", MODEL)
    assert (live_slots(store), slots_of(store), rates_of(store)) == (110, 110, [200, 1_000, 2.5])
    store.client.set(keys.clock(), f"={START_MS + 5_000}")
    store.reap()
    assert live_slots(store) == 110
    store.client.set(keys.clock(), f"={START_MS + 5_001}")
    store.reap()
    assert (live_slots(store), slots_of(store)) == (100, 100)
    heartbeat(store, "dies", slots=10)
    assert (live_slots(store), slots_of(store)) == (110, 110)


def test_the_silence_of_a_whole_fleet_is_counted_within_a_few_passes(store):
    for number in range(200):
        heartbeat(store, f"w{number}")
    advance_clock(store, 5_001)
    for left in (200 - 64, 200 - 128, 200 - 192, 0):
        store.reap()
        assert live_slots(store) == 4 * left
    heartbeat(store, "w7")
    assert (live_slots(store), slots_of(store)) == (4, 4)


def test_a_worker_may_change_its_model_its_slots_and_its_rates_between_heartbeats(store):
    heartbeat(store, "other", model="b", slots=3)
    heartbeat(store, model="a", slots=4, facts=RATES)
    heartbeat(store, model="a", slots=6, facts=RATES | {"mu_wtps": 50})
    assert (slots_of(store, "a"), rates_of(store, "a")) == (6, [50, 1_000, 2.5])
    heartbeat(store, model="b", slots=5, facts=RATES)
    assert (slots_of(store, "a"), slots_of(store, "b"), live_slots(store)) == (0, 8, 8)
    assert store.client.zrange(keys.pool("a"), 0, -1) == []
    refused(store, a_job(model="a"))


def test_two_workers_of_one_name_count_as_the_one_that_reported_last(store):
    for slots in (4, 9, 4, 9):
        heartbeat(store, slots=slots)
        assert (live_slots(store), slots_of(store)) == (slots, slots)


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "", "much", "1e300", "inf", 1e-9])
@pytest.mark.parametrize("name", ["mu_wtps", "prefill_tps", "tpot_ms"])
def test_an_invalid_or_huge_rate_of_one_worker_leaves_the_sums_exact(store, name, rate):
    heartbeat(store, "w2", facts=RATES)
    heartbeat(store, facts=RATES | {name: rate})
    store.farewell("w1", MODEL)
    assert rates_of(store) == [100.5, 1_000, 2.5]
    assert store.recount_workers() == 0


def test_the_sums_are_exact_after_any_heartbeats_silences_and_farewells(store):
    """Random, but the same in every run; the fixture compares the sums with the parts at the end too."""
    chosen = random.Random(5)
    for _ in range(300):
        worker = f"w{chosen.randrange(12)}"
        act = chosen.random()
        if act < 0.7:
            facts = {name: round(chosen.uniform(0.1, 900), 6) for name in RATES} if chosen.random() < 0.8 else {}
            model = chosen.choice(["a", "b", "c/d"])
            store.renew(a_heartbeat(worker, slots=chosen.randrange(9), model=model, facts=facts), [])
        elif act < 0.8:
            store.farewell(worker, chosen.choice(["a", "b"]))
        else:
            advance_clock(store, chosen.randrange(4_000))
            store.reap()
        assert store.recount_workers() == 0
        assert find_breaches(store.client) == []
    advance_clock(store, 6_000)
    store.reap()
    assert live_slots(store) == 0


DAMAGES = {
    "the parts are gone": lambda client: client.delete(keys.counted()),
    "the heartbeats are gone": lambda client: client.delete(keys.live()),
    "a part is gone": lambda client: client.hdel(keys.counted(), "w1"),
    "a heartbeat is gone": lambda client: client.zrem(keys.live(), "w1"),
    "a part is not one": lambda client: client.hset(keys.counted(), "w1", "many"),
    "a part of nobody": lambda client: client.hset(keys.counted(), "ghost", "m 7 0 0 0 0"),
    "a heartbeat of nobody": lambda client: client.zadd(keys.live(), {"ghost": 1}),
    "a heartbeat is in the far future": lambda client: client.zadd(keys.live(), {"w1": 9e15}),
    "a sum is wrong": lambda client: client.hset(keys.books(MODEL), "slots", 99),
    "a sum is no number": lambda client: client.hset(keys.books(MODEL), mapping={"slots": "x", "mu_milli": "y"}),
    "the total is wrong": lambda client: client.hset(keys.config(), "live_slots", 99),
    "the total is no number": lambda client: client.hset(keys.config(), "live_slots", "x"),
    "the pool record is gone": lambda client: client.delete(keys.books(MODEL)),
    "the parts have another type": lambda client: (client.delete(keys.counted()), client.set(keys.counted(), "x")),
    "the heartbeats have another type": lambda client: (client.delete(keys.live()), client.set(keys.live(), "x")),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("beats_first", [False, True])
def test_sums_that_another_program_damaged_heal_at_the_next_recount(store, name, beats_first):
    def beat():
        heartbeat(store, facts=RATES)
        heartbeat(store, "w2", slots=2, facts=RATES)
        heartbeat(store, "w3", slots=1, model="n")

    beat()
    DAMAGES[name](store.client)
    if beats_first:
        beat()
    store.recount_workers()
    beat()
    assert find_breaches(store.client) == []
    assert (live_slots(store), slots_of(store), slots_of(store, "n")) == (7, 6, 1)
    assert rates_of(store) == [201, 1_000, 2.5]
    assert store.recount_workers() == 0


def test_a_dead_worker_whose_heartbeat_another_program_moved_to_the_future_is_not_counted_forever(store):
    heartbeat(store)
    store.client.zadd(keys.live(), {"w1": 9e15})
    advance_clock(store, 6_000)
    store.reap()
    store.recount_workers()
    store.reap()
    assert (live_slots(store), slots_of(store)) == (0, 0)


def test_doctor_names_sums_that_are_wrong(store):
    heartbeat(store)
    store.client.hset(keys.books(MODEL), "slots", 5)
    store.client.hset(keys.config(), "live_slots", 6)
    store.client.zadd(keys.live(), {"ghost": 1})
    assert [(breach.invariant, breach.message) for breach in find_breaches(store.client)] == [
        (12, "the slots of all pools are '6', but the live workers have 4"),
        (12, "the slots of m are '5', but its live workers have 4"),
        (12, "workers have a heartbeat or a part of the sums over live workers, but not both: ['ghost']"),
    ]
    assert store.recount_workers() == 3


def test_a_store_that_an_earlier_version_wrote_starts_with_right_sums(store):
    store.client.hset(keys.config(), "live_slots", 256)
    store.client.hset(keys.books(MODEL), mapping={"slots": 256, "mu_wtps": 9_999})
    heartbeat(store, facts=RATES)
    assert (live_slots(store), slots_of(store), rates_of(store)) == (4, 4, [100.5, 1_000, 2.5])


def test_heartbeats_and_recounts_work_when_memory_is_full(store, memory_is_full):
    heartbeat(store, "w2")
    store.client.hset(keys.config(), "live_slots", 5)
    with memory_is_full():
        heartbeat(store, slots=7)
        assert store.recount_workers() == 1
    assert live_slots(store) == 11
