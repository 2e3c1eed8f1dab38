"""Tests of the automatic bound on inflight jobs, which is the number that the live pools can work off in time."""

import pytest

from shared.audit.invariants import find_breaches
from shared.jobs.job import Usage
from shared.jobs.outcomes import Refusal
from shared.store import keys
from tests.support.builders import (
    MODEL,
    a_heartbeat,
    a_job,
    admitted,
    an_ending,
    claim_one,
    reconfigure,
    refused,
)

#: A pool that computes 1,000 weighted tokens a second: 8 s of work and a quarter more are 10,000 weighted tokens.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20}


def heartbeat(store, worker="w1", model=MODEL, slots=4, **rates):
    store.renew(a_heartbeat(worker, slots=slots, model=model, facts=RATES | rates), [])


def set_mean(store, wt, model=MODEL):
    store.client.hset(keys.books(model), "mean_mwt", int(1_000 * wt))


def bound(store) -> int:
    shown = {store.overview().max_inflight, store.snapshot().max_inflight}
    assert len(shown) == 1
    return shown.pop()


def test_the_bound_is_the_slots_and_the_mean_jobs_of_the_largest_backlog(store):
    heartbeat(store)
    assert bound(store) == 64
    set_mean(store, 30)
    heartbeat(store)
    # 10,000 / 30 is 333.3.
    assert bound(store) == 4 + 334


def test_the_bound_follows_from_jobs_that_end(store):
    heartbeat(store)
    admitted(store, a_job())
    store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 10, 1, 1, 1)), "w1")
    assert bound(store) == 64
    heartbeat(store)
    # The job cost 50 weighted tokens.
    assert bound(store) == 4 + 200


def test_admission_uses_the_bound_that_is_shown(store, settings, clock):
    reconfigure(store, settings, admission="bounds", max_queue_size=1_000)
    heartbeat(store)
    set_mean(store, 125)
    heartbeat(store)
    for number in range(84):
        admitted(store, a_job(f"t{number}"))
    answer = refused(store, a_job("late"))
    assert (answer.reason, answer.value, answer.max) == (Refusal.INFLIGHT_FULL, 84, 84)


def test_a_slow_pool_has_four_places_for_each_slot(store):
    heartbeat(store, slots=40, mu_wtps=1)
    set_mean(store, 100)
    heartbeat(store, slots=40, mu_wtps=1)
    assert bound(store) == 160


def test_a_pool_without_rates_counts_four_places_for_each_slot_beside_one_with_rates(store):
    heartbeat(store)
    set_mean(store, 100)
    heartbeat(store)
    heartbeat(store, "w2", "n", slots=30, mu_wtps=0)
    set_mean(store, 1, "n")
    heartbeat(store, "w2", "n", slots=30, mu_wtps=0)
    assert bound(store) == 104 + 120


def test_the_bound_rises_at_once_and_falls_by_an_eighth_with_each_heartbeat(store):
    heartbeat(store)
    set_mean(store, 10)
    heartbeat(store)
    assert bound(store) == 1_004
    set_mean(store, 100)
    seen = []
    for _ in range(30):
        heartbeat(store)
        seen.append(bound(store))
    assert seen[:3] == [878, 768, 672]
    assert seen[-1] == 104
    set_mean(store, 20)
    heartbeat(store)
    assert bound(store) == 504


def test_a_bound_that_swings_with_the_mean_job_does_not_refuse_in_every_trough(store):
    """One job in eight is ten times as long: the mean of the pool rises and falls from heartbeat to heartbeat."""
    heartbeat(store)
    least = []
    for round_ in range(40):
        set_mean(store, 100 if round_ % 8 == 0 else 50)
        heartbeat(store)
        least.append(bound(store))
    assert min(least[8:]) == int(204 * 7 / 8)


def test_the_places_of_a_pool_that_falls_silent_or_says_farewell_go_at_once(store, clock):
    for model, worker in (("a", "w1"), ("b", "w2")):
        heartbeat(store, worker, model)
        set_mean(store, 10, model)
        heartbeat(store, worker, model)
    assert bound(store) == 2_008
    store.farewell("w1", "a")
    assert bound(store) == 1_004
    clock.set(5_100)
    store.reap()
    assert bound(store) == 64
    assert find_breaches(store.client) == []


def test_a_worker_that_changes_its_model_takes_its_places_along(store):
    for model in ("a", "b"):
        set_mean(store, 10, model)
        heartbeat(store, model=model)
        assert bound(store) == 1_004
    assert find_breaches(store.client) == []


def test_a_set_number_is_the_bound_whatever_the_pools_can_do(store, settings):
    reconfigure(store, settings, max_inflight=7)
    heartbeat(store)
    set_mean(store, 10)
    heartbeat(store)
    assert bound(store) == 7


def test_the_bound_never_exceeds_the_largest_number_that_can_be_set(store):
    heartbeat(store, mu_wtps=1e10)
    set_mean(store, 0.001)
    heartbeat(store, mu_wtps=1e10)
    assert bound(store) == 10_000_000


def test_many_large_pools_count_as_the_largest_number_that_can_be_set(store):
    for number in range(3):
        model = f"m{number}"
        set_mean(store, 0.001, model)
        heartbeat(store, f"w{number}", model, mu_wtps=1e10)
    assert bound(store) == refused(store, a_job(model="other")).max_inflight == 10_000_000


DAMAGES = {
    "the sum is wrong": lambda client: client.hset(keys.config(), "live_places", 99),
    "the sum is no number": lambda client: client.hset(keys.config(), "live_places", "x"),
    "the sum is gone": lambda client: client.hdel(keys.config(), "live_places"),
    "a pool's places are wrong": lambda client: client.hset(keys.books(MODEL), "places", 99),
    "a pool's places are no number": lambda client: client.hset(keys.books(MODEL), "places", "nan"),
    "a pool's places are gone": lambda client: client.hdel(keys.books(MODEL), "places"),
    "a dead pool has places": lambda client: client.hset(keys.books("dead"), "places", 5),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("beats_first", [False, True])
def test_places_that_another_program_damaged_heal_at_the_next_recount(store, name, beats_first):
    heartbeat(store, "w9", "dead")
    store.farewell("w9", "dead")
    for model, worker in ((MODEL, "w1"), ("n", "w2")):
        set_mean(store, 10, model)
        heartbeat(store, worker, model)
    DAMAGES[name](store.client)
    if beats_first:
        heartbeat(store)
    store.recount_workers()
    heartbeat(store)
    assert find_breaches(store.client) == []
    assert bound(store) == 2_008
    assert store.recount_workers() == 0


def test_doctor_names_places_that_do_not_add_up(store):
    heartbeat(store)
    store.client.hset(keys.config(), "live_places", 6)
    assert [(breach.invariant, breach.message) for breach in find_breaches(store.client)] == [
        (12, "the places of all pools are '6', but their records have 16")
    ]
    assert store.recount_workers() == 1


def test_a_pool_that_a_version_without_places_counted_gets_them_with_its_next_heartbeat(store):
    heartbeat(store)
    store.client.hdel(keys.config(), "live_places")
    store.client.hdel(keys.books(MODEL), "places")
    assert find_breaches(store.client) == []
    assert bound(store) == 64
    set_mean(store, 10)
    heartbeat(store)
    assert bound(store) == 1_004
