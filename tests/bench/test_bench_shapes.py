"""Tests that synthesized traffic has the published figures, and that a seed always gives the same traffic."""

from dataclasses import replace

import numpy as np
import pytest

from bench.sim.arrivals import DEADLINES, Crowd, phases, plan
from bench.sim.shapes import BURSTGPT, CODE, CONVERSATION, CONVERSATION_2024, burst_times, gamma_times


def dispersion(times, seconds, window_s):
    """Return the variance of the counts in windows of this length, divided by their mean."""
    counts = np.histogram(times, bins=np.arange(0, seconds + 1e-9, window_s))[0]
    return counts.var() / counts.mean()


@pytest.mark.parametrize(("share", "prompt", "answer"), [(50, 1020, 129), (90, 2735, 424), (99, 4142, 601)])
def test_the_lengths_of_conversations_have_the_percentiles_of_the_trace(share, prompt, answer):
    prompts, answers = CONVERSATION.lengths(np.random.default_rng(1), 50_000, longest=(10_000, 10_000))
    assert np.percentile(prompts, share) == pytest.approx(prompt, rel=0.03)
    assert np.percentile(answers, share) == pytest.approx(answer, rel=0.03)


def test_lengths_are_at_least_one_and_at_most_the_given_maximum():
    prompts, answers = CONVERSATION_2024.lengths(np.random.default_rng(1), 20_000, longest=(3_000, 200))
    assert (min(prompts) >= 1, max(prompts)) == (True, 3_000)
    assert (min(answers) >= 1, max(answers)) == (True, 200)


@pytest.mark.parametrize("shape", [CONVERSATION, BURSTGPT])
def test_gaps_have_the_mean_and_the_coefficient_of_variation_of_the_trace(shape):
    gaps = np.diff(gamma_times(np.random.default_rng(2), 50.0, 2_000.0, shape.gap_cv))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(shape.gap_cv, rel=0.03)


@pytest.mark.parametrize("shape", [CONVERSATION_2024, CODE])
def test_bursts_have_the_dispersion_of_the_trace_in_short_and_long_windows(shape):
    seconds = 20_000.0
    times = burst_times(np.random.default_rng(3), 40.0, seconds, shape)
    assert len(times) / seconds == pytest.approx(40.0, rel=0.1)
    for window_s, wanted in shape.dispersion:
        assert dispersion(times, seconds, window_s) == pytest.approx(wanted, rel=0.4)


def test_a_rate_of_zero_sends_nothing():
    assert len(gamma_times(np.random.default_rng(1), 0.0, 10.0, 1.0)) == 0


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_plan():
    crowd = Crowd(20.0, light_rate_per_s=0.2)

    def planned(seed):
        return [(job.at_ms, job.tenant, job.prompt, job.answer, job.deadline_ms) for job in plan(crowd, 30.0, seed)]

    assert planned(5) == planned(5)
    assert planned(5) != planned(6)


def test_light_tenants_send_the_same_jobs_at_every_load():
    def light(rate):
        jobs = plan(Crowd(rate, light_rate_per_s=0.3), 60.0, 4)
        return [(job.at_ms, job.tenant, job.prompt, job.answer) for job in jobs if job.light]

    assert light(10.0) == light(200.0) != []


def test_load_deadlines_and_tenants_have_the_given_distribution():
    jobs = plan(Crowd(200.0), 200.0, 1)
    assert len(jobs) / 200 == pytest.approx(200, rel=0.03)
    for deadline_ms, share in DEADLINES:
        assert sum(job.deadline_ms == deadline_ms for job in jobs) / len(jobs) == pytest.approx(share, abs=0.02)
    by_tenant = sorted((sum(job.tenant == f"t{i:02d}" for job in jobs) for i in range(50)), reverse=True)
    assert by_tenant[0] / by_tenant[9] == pytest.approx(10**1.1, rel=0.15)


def test_jobs_are_numbered_in_order_through_all_phases():
    jobs = phases([(Crowd(20.0), 10.0), (replace(Crowd(20.0), rate_per_s=100.0), 5.0), (Crowd(20.0), 10.0)], 1)
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert [job.at_ms for job in jobs] == sorted(job.at_ms for job in jobs)
    middle = sum(10_000 <= job.at_ms < 15_000 for job in jobs)
    assert middle / 5 == pytest.approx(100, rel=0.2)
