"""Tests that the cost of a generated token in a pool follows the workers' fits (PENSTOCK_GENERATED_WEIGHT=auto)."""

import itertools
import random
from pathlib import Path

import pytest

from shared.audit.invariants import find_breaches
from shared.jobs.cost import reported_weight
from shared.jobs.job import Usage
from shared.settings.setting import AUTO
from shared.store import keys, scripts
from shared.store.replies import Progress
from tests.support.builders import MODEL, a_heartbeat, a_job, admitted, advance_clock, an_ending, claim_one, reconfigure
from tests.support.cell import empty

#: A worker that computes 1,000 weighted tokens a second if a generated token counts as 4: 600 prompt tokens and 100
#: generated ones.
RATES = {"mu_wtps": 1_000, "prefill_tps": 1_000, "tpot_ms": 20, "generated_tps": 100}


def heartbeat(store, fit=None, worker="w1", held=(), progress=None, **facts):
    fitted = {} if fit is None else {"fit_generated_weight": fit}
    store.renew(a_heartbeat(worker, facts=RATES | fitted | facts), held, progress=progress)


def beat_for(store, seconds, fit, **facts):
    """Let a worker report this fit each second."""
    for _ in range(seconds):
        heartbeat(store, fit, **facts)
        advance_clock(store, 1_000)


def weight(store, model=MODEL):
    """Return the weight in the estimated cost of a job with 100 generated tokens and no prompt."""
    return (
        store.quote(a_job("asker", model=model, prompt_tokens=0, max_tokens=100, deadline_ms=60_000)).cost_mwt / 100_000
    )


def mu(store):
    return float(store.client.hget(keys.books(MODEL), "mu_wtps"))


def service_mwt(store, tenant="blue"):
    return int(store.client.hget(keys.tenant(tenant), keys.service_field(MODEL)))


def run_a_job(store, *tokens, tenant="blue"):
    admitted(store, a_job(tenant, cost_mwt=None))
    store.settle(an_ending(claim_one(store).held, usage=Usage(*tokens)), "w1")


@pytest.fixture
def used(store):
    """A pool of weight 4 in which a job has ended, so that its weight changes only in steps."""
    heartbeat(store, 4)
    run_a_job(store, 10, 0, 20)
    return store


def test_a_pool_whose_workers_report_no_fit_has_weight_4(store):
    heartbeat(store)
    assert (weight(store), mu(store)) == (4, 1_000)


@pytest.mark.parametrize(
    ("fit", "expected"), [(10, 10), (2, 2), (1.28, 1.28), (3.3, 4), (4.9, 4), (0.2, 1), (1e9, 1_000)]
)
def test_a_new_pool_takes_the_fit_of_its_worker_if_it_is_not_near_4(store, fit, expected):
    heartbeat(store, fit)
    assert weight(store) == expected


@pytest.mark.parametrize("fit", ["nan", "-3", "0", "much", "", "inf", "1e300"])
def test_a_fit_that_is_not_a_positive_number_is_ignored(store, fit):
    heartbeat(store, fit)
    assert weight(store) == 4


def test_the_mean_of_the_fits_is_weighted_by_the_rates_of_the_workers(store):
    heartbeat(store, 4, mu_wtps=3_000)
    heartbeat(store, 44, "w2")
    assert weight(store) == (3 * 4 + 44) / 4


@pytest.mark.parametrize(("mu_wtps", "mean"), [(1_000, 6), (3_000, 4), (100, 102 / 11)])
def test_workers_with_fits_of_2_and_10_agree_on_a_weight_near_the_mean(store, mu_wtps, mean):
    for _ in range(80):
        heartbeat(store, 2, mu_wtps=mu_wtps)
        heartbeat(store, 10, "w2")
        advance_clock(store, 1_000)
    assert mean / 1.25 <= weight(store) <= mean * 1.25


def test_the_rate_of_the_pool_is_in_the_unit_of_its_weight(store):
    heartbeat(store, 10)
    heartbeat(store, 10, "w2", mu_wtps=2_000, generated_tps=300)
    # 600 and 800 prompt tokens, and 100 and 300 generated ones at 10 each.
    assert mu(store) == 600 + 10 * 100 + 800 + 10 * 300
    store.farewell("w1", MODEL)
    assert mu(store) == 800 + 10 * 300
    assert store.recount_workers() == 0


@pytest.mark.passing_time
def test_a_job_takes_as_long_whatever_the_weight(store):
    """The same tenants, jobs and workers: with weight 10, costs and rate grow alike."""

    def wait_ms():
        for _ in range(8):
            admitted(store, a_job("blue", prompt_tokens=120, max_tokens=20, cost_mwt=None, deadline_ms=600_000))
        quoted = store.quote(a_job(prompt_tokens=120, deadline_ms=600_000))
        empty(store.client)
        return quoted.eta_ms

    heartbeat(store, 4)
    before_ms = wait_ms()
    heartbeat(store, 10)
    assert wait_ms() == pytest.approx(before_ms, rel=0.01)


def test_the_weight_of_a_used_pool_changes_by_a_quarter_after_ten_seconds_at_the_earliest(used):
    seen = []
    for _ in range(45):
        beat_for(used, 1, 10)
        seen.append(weight(used))
    assert sorted(set(seen)) == [4, 5, 6.25, 7.813, 9.766]
    assert seen == sorted(seen)
    assert [seen.count(value) for value in (4, 5, 6.25, 7.813)] == [10, 10, 10, 10]


def test_the_rate_moves_with_the_weight_at_once(used):
    beat_for(used, 11, 10)
    assert (weight(used), mu(used)) == (5, 600 + 5 * 100)


def test_the_weight_follows_a_smaller_fit_down_to_one(used):
    beat_for(used, 200, 0.3)
    assert 1 <= weight(used) <= 1.25
    assert mu(used) == pytest.approx(600 + 100 * weight(used))


def test_fits_that_vary_by_a_tenth_never_move_the_weight_back(used):
    chosen, seen = random.Random(7), []
    for _ in range(300):
        beat_for(used, 1, 7 * chosen.uniform(0.9, 1.1))
        seen.append(weight(used))
    changes = [(before, after) for before, after in itertools.pairwise(seen) if before != after]
    assert len(changes) <= 3
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(7, rel=0.2)


def test_a_fit_that_swings_to_both_sides_moves_nothing(used):
    for _ in range(40):
        beat_for(used, 1, 40)
        beat_for(used, 1, 1)
    assert weight(used) == 4


def test_a_short_disturbance_moves_nothing(used):
    for _ in range(5):
        beat_for(used, 9, 40)
        beat_for(used, 1, 4)
    assert weight(used) == 4


def test_a_set_number_wins_and_the_rates_are_taken_as_reported(store, settings):
    reconfigure(store, settings, generated_weight=6)
    beat_for(store, 30, 20)
    assert (weight(store), mu(store)) == (6, 1_000)
    run_a_job(store, 10, 0, 20)
    assert service_mwt(store) == (10 + 6 * 20) * 1_000
    assert not store.client.hexists(keys.books(MODEL), "generated_weight_milli")


def test_other_pools_keep_their_weights(store):
    heartbeat(store, 10)
    store.renew(a_heartbeat("w2", model="n", facts=RATES | {"fit_generated_weight": 2}), [])
    assert (weight(store), weight(store, "n")) == (10, 2)


def test_a_job_is_charged_with_the_weight_of_its_admission_to_its_end(used):
    admitted(used, a_job(prompt_tokens=10, max_tokens=100, cost_mwt=None))
    before = service_mwt(used)
    held = claim_one(used)
    estimate = service_mwt(used) - before
    beat_for(used, 11, 10, held=[held.held])
    assert weight(used) == 5
    heartbeat(used, 10, held=[held.held], progress={held.id: Progress(90, 7)})
    assert service_mwt(used) - before == max(estimate, (10 + 7 + 4 * 90) * 1_000)
    used.settle(an_ending(held.held, usage=Usage(10, 0, 95, cpu_tokens=8)), "w1")
    assert service_mwt(used) - before == (10 + 8 + 4 * 95) * 1_000


def test_a_job_that_was_admitted_with_another_weight_than_4_keeps_it_through_a_requeue(store):
    heartbeat(store, 10)
    job_id = admitted(store, a_job(prompt_tokens=10, max_tokens=20, cost_mwt=None))
    held = claim_one(store)
    assert service_mwt(store) == (10 + 10 * 20) * 1_000
    store.client.hdel(keys.books(MODEL), "generated_weight_milli")
    assert store.release("w1", [held.held]) == 1
    assert service_mwt(store) == 0
    again = claim_one(store)
    assert again.id == job_id
    store.settle(an_ending(again.held, usage=Usage(10, 4, 15)), "w1")
    assert service_mwt(store) == (10 - 4 + 10 * 15) * 1_000


def test_a_job_of_the_usual_weight_stores_none(store):
    heartbeat(store, 4)
    usual = admitted(store, a_job(cost_mwt=None))
    heartbeat(store, 10)
    other = admitted(store, a_job(cost_mwt=None))
    stored = [store.client.hget(keys.rq_job(job_id), "penstock_generated_weight_milli") for job_id in (usual, other)]
    assert stored == [None, b"10000"]


def test_a_job_that_an_earlier_version_admitted_is_charged_with_weight_4(store):
    heartbeat(store, 10)
    job_id = admitted(store, a_job(cost_mwt=90_000))
    store.client.hdel(keys.rq_job(job_id), "penstock_generated_weight_milli")
    store.settle(an_ending(claim_one(store).held, usage=Usage(10, 0, 20)), "w1")
    assert service_mwt(store) == 90_000


def test_workers_of_an_earlier_version_count_with_the_rates_that_they_report(store):
    """They report neither a fit nor generated tokens, and their parts of the sums are shorter."""
    heartbeat(store)
    part = store.client.hget(keys.counted(), "w1").decode()
    store.client.hset(keys.counted(), "w1", " ".join(part.split()[:6]))
    store.client.hdel(keys.books(MODEL), "generated_milli", "fit_weights", "fits")
    heartbeat(store, 10, "w2")
    heartbeat(store, 10, "w2")
    assert (weight(store), mu(store)) == (10, 1_000 + 600 + 10 * 100)
    heartbeat(store, worker="w1", generated_tps=0)
    assert store.recount_workers() == 0
    store.farewell("w1", MODEL)
    assert mu(store) == 1_600


SPOILED = ["abc", "", "-1", "0", "1e300", "nan", "999", "1000001", "4500.5"]


@pytest.mark.parametrize("value", SPOILED)
def test_a_spoiled_weight_counts_as_4_or_as_a_number_and_heals(used, value):
    used.client.hset(keys.books(MODEL), "generated_weight_milli", value)
    assert weight(used) == (4.5 if value == "4500.5" else 4)
    beat_for(used, 60, 9)
    assert weight(used) == pytest.approx(9, rel=0.2)
    assert find_breaches(used.client) == []


@pytest.mark.parametrize("value", [*SPOILED, "9" * 14, "-" + "9" * 14])
def test_a_spoiled_time_since_when_the_fit_is_off_heals(used, value):
    used.client.hset(keys.books(MODEL), "weight_off_ms", value)
    beat_for(used, 45, 10)
    assert weight(used) == 9.766


@pytest.mark.parametrize("value", SPOILED)
def test_a_spoiled_weight_of_a_job_costs_no_more_than_that_job(used, value):
    admitted(used, a_job(cost_mwt=None))
    held = claim_one(used)
    before = service_mwt(used)
    used.client.hset(keys.rq_job(held.id), "penstock_generated_weight_milli", value)
    heartbeat(used, 4, held=[held.held], progress={held.id: Progress(30)})
    used.settle(an_ending(held.held, usage=Usage(10, 0, 20)), "w1")
    assert 0 <= service_mwt(used) - before + 90_000 <= 100_000 + 90_000
    assert find_breaches(used.client) == []


@pytest.mark.parametrize("name", ["generated_milli", "fit_weights", "fits"])
@pytest.mark.parametrize("value", ["abc", "-7", "9" * 15, "nan"])
def test_spoiled_sums_heal_at_the_next_recount(used, name, value):
    used.client.hset(keys.books(MODEL), name, value)
    heartbeat(used, 4)
    used.recount_workers()
    heartbeat(used, 4)
    assert used.recount_workers() == 0
    assert mu(used) == 1_000


def test_workers_report_with_the_weight_that_the_scripts_assume():
    lib = (Path(scripts.__file__).parents[1] / "lua" / "lib" / "pools" / "generated_weight.lua").read_text()
    assert f"local USUAL_WEIGHT_MILLI = {1_000 * reported_weight(AUTO)}\n" in lib
    assert reported_weight(7) == 7
