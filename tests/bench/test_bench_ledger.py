"""Tests the figures of a run: useful work, waste, success, differences in service, the max-min oracle, the bound."""

import pytest

from bench.sim.asks import SimJob
from bench.sim.fairness import Scenario, Services, max_min
from bench.sim.ledger import Window, jain, judged, percentile, success, useful_wtps, waste
from bench.sim.simulation import Run

WINDOW = Window(10_000, 20_000)


def a_job(*, at_ms=11_000.0, ended_ms=12_000.0, outcome="succeeded", deadline_ms=10_000, computed=(10, 5)):
    job = SimJob(0, "blue", at_ms, 10, 5, 20, deadline_ms)
    job.sent_ms, job.ended_ms, job.outcome = at_ms, ended_ms, outcome
    job.computed_prompt, job.computed_answer = computed
    return job


def a_run(*jobs):
    return Run(list(jobs), [], 20.0)


def test_an_answer_in_time_counts_as_its_prompt_tokens_and_four_times_its_generated_tokens():
    assert useful_wtps(a_run(a_job()), WINDOW) == 30 / 10


@pytest.mark.parametrize(
    "job",
    [
        a_job(outcome="expired"),
        a_job(ended_ms=12_001.0, deadline_ms=1_000),
        a_job(ended_ms=21_000.0),
        a_job(at_ms=1_000.0, ended_ms=9_000.0),
    ],
)
def test_an_answer_that_is_late_or_outside_the_window_is_not_useful(job):
    assert useful_wtps(a_run(job), WINDOW) == 0


def test_waste_is_the_share_of_the_work_for_answers_that_were_not_ready_in_time():
    late = a_job(outcome="expired", computed=(10, 0))
    assert waste(a_run(a_job(), late), WINDOW) == pytest.approx(10 / 40)
    assert waste(a_run(), WINDOW) == 0


def test_a_job_without_an_outcome_is_judged_only_if_all_jobs_sent_before_a_given_time_are():
    open_job = a_job(outcome="", ended_ms=None, deadline_ms=60_000)
    refused = a_job(outcome="", ended_ms=None)
    refused.gave_up_ms = 11_000.0
    run = a_run(a_job(), open_job, refused)
    assert judged(run, WINDOW) == [run.jobs[0], refused]
    assert judged(run, WINDOW, sent_until_ms=12_000) == run.jobs
    assert success(run.jobs) == pytest.approx(1 / 3)


def test_a_percentile_is_one_of_the_values_and_nan_without_values():
    assert percentile(range(100), 0.99) == 99
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([], 0.5) != percentile([], 0.5)


def test_jain_s_index_is_one_for_equal_values_and_one_nth_if_one_of_n_has_all():
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_max_min_grants_small_demands_in_full_and_shares_the_rest_by_weight():
    shares = max_min({"small": 10, "big": 1_000, "double": 1_000}, {"double": 2.0}, 310)
    assert shares == {"small": 10, "big": pytest.approx(100), "double": pytest.approx(200)}


def test_max_min_gives_no_tenant_more_than_its_demand():
    assert max_min({"a": 5, "b": 7}, {}, 100) == {"a": 5, "b": 7}


def test_the_difference_in_service_counts_only_while_both_tenants_wait():
    services = Services(
        1.0,
        moments=[0, 1, 2, 3],
        served=[{"a": 0, "b": 0}, {"a": 50, "b": 0}, {"a": 90, "b": 10}, {"a": 500, "b": 10}],
        waits=[frozenset("ab"), frozenset("ab"), frozenset("ab"), frozenset("a")],
    )
    assert services.worst() == 80
    assert services.jain_while_all_wait() == pytest.approx((90 + 10) ** 2 / (2 * (90**2 + 10**2)))


def test_the_comparison_starts_again_after_a_period_in_which_a_tenant_does_not_wait():
    services = Services(
        1.0,
        moments=[0, 1, 2],
        served=[{"a": 0, "b": 0}, {"a": 100, "b": 0}, {"a": 130, "b": 0}],
        waits=[frozenset("ab"), frozenset("a"), frozenset("ab")],
    )
    assert services.worst() == 0


def test_the_comparison_starts_again_after_a_break_between_two_samples():
    services = Services(
        1.0,
        moments=[0, 1, 2],
        served=[{"a": 0, "b": 0}, {"a": 100, "b": 0}, {"a": 130, "b": 0}],
        waits=[frozenset("ab")] * 3,
        breaks=[frozenset(), frozenset("b"), frozenset()],
    )
    assert services.worst() == 30


def test_the_bound_is_twice_the_cost_of_the_longest_prompt_or_of_a_full_batch_of_answers():
    jobs = (SimJob(0, "a", 0, 3_000, 10, 100, 1), SimJob(1, "b", 0, 10, 100, 100, 1))
    assert Scenario(jobs, {}, 1.0, slots=4).batch_bound_wt == 2 * 3_000
    assert Scenario(jobs, {}, 1.0, slots=16).batch_bound_wt == 2 * 4 * 16 * 100
