"""Tests the figures of live bursts: answers in time, quiet tenants' success, time in which nobody is answered."""

from itertools import pairwise

import pytest

from bench.live.burst import (
    Clients,
    Times,
    burst_figures,
    fates,
    in_time_by_second,
    in_time_per_s,
    longest_silence_s,
    plan_burst,
)
from bench.sim.asks import SimJob
from bench.sim.simulation import Run

#: The burst is from 10 to 20 s, and the run ends at 40 s.
TIMES = Times(before=10, burst=10, after=20)


def a_job(sent_s, *, answered_s=None, refused_s=None, light=False, outcome="succeeded"):
    """Return a request whose client has a patience of 3 s. Without an answer or a refusal, the client left."""
    job = SimJob(0, "quiet" if light else "loud", sent_s * 1_000, 10, 5, 20, 3_000, light=light, leaves_after_ms=3_000)
    job.sent_ms, job.attempts = job.at_ms, 1
    if answered_s is not None:
        job.ended_ms, job.outcome = answered_s * 1_000, outcome
    elif refused_s is not None:
        job.gave_up_ms, job.refusal = refused_s * 1_000, "backlog_full"
    else:
        job.gone = True
    return job


def a_run(*jobs):
    return Run(list(jobs), [], TIMES.seconds)


def figures(*jobs):
    return burst_figures(a_run(*jobs), TIMES)


def test_only_answers_that_arrive_in_the_burst_count_for_its_rate():
    before, first, last = a_job(8, answered_s=9.9), a_job(9, answered_s=10), a_job(19, answered_s=19.9)
    after = a_job(19, answered_s=20)
    assert in_time_per_s(a_run(before, first, last, after), TIMES.in_burst) == 2 / 10


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(a_job(12), id="the client left"),
        pytest.param(a_job(12, refused_s=12.1), id="refused"),
        pytest.param(a_job(12, answered_s=15.1), id="late"),
        pytest.param(a_job(12, answered_s=13, outcome="failed"), id="failed"),
    ],
)
def test_a_request_without_an_answer_in_time_counts_against_success_and_not_as_an_answer(job):
    got = figures(a_job(11, answered_s=12), job)
    assert got["success"] == 1 / 2
    assert got["in_time_per_s"] == 1 / 10
    assert sum(got["in_time_by_second"]) == 1
    assert got["offered_per_s"] == 2 / 10


def test_the_quiet_tenants_success_ignores_the_others_and_requests_outside_the_burst():
    quiet = [a_job(11, answered_s=12, light=True), a_job(12, light=True), a_job(13, refused_s=13, light=True)]
    others = [a_job(12, answered_s=13), a_job(5, light=True), a_job(25, answered_s=26, light=True)]
    got = figures(*quiet, *others)
    assert (got["quiet_success"], got["quiet_requests"]) == (pytest.approx(1 / 3), 3)
    assert got["quiet_success_after"] == 1


def test_a_request_that_was_sent_in_the_burst_and_answered_after_it_is_a_success_of_the_burst():
    got = figures(a_job(19, answered_s=21, light=True))
    assert (got["quiet_success"], got["in_time_per_s"]) == (1, 0)


def test_silence_is_the_longest_time_after_the_burst_without_an_answer_in_time():
    early, late = a_job(19, answered_s=20.5), a_job(33, answered_s=34)
    assert longest_silence_s(a_run(early, late), TIMES.afterwards) == 13.5


def test_silence_lasts_from_the_end_of_the_burst_to_the_first_answer_and_from_the_last_one_to_the_end():
    assert longest_silence_s(a_run(a_job(34, answered_s=35)), TIMES.afterwards) == 15
    assert longest_silence_s(a_run(a_job(21, answered_s=22)), TIMES.afterwards) == 18


def test_a_system_that_answers_nobody_in_time_is_silent_to_the_end_of_the_run():
    late, left, in_burst = a_job(25, answered_s=28.5), a_job(30), a_job(12, answered_s=13)
    assert longest_silence_s(a_run(late, left, in_burst), TIMES.afterwards) == 20


def test_answers_by_second_cover_every_second_of_the_run():
    by_second = in_time_by_second(a_run(a_job(0, answered_s=0.5), a_job(1, answered_s=3.9), a_job(2, answered_s=3.0)))
    assert (len(by_second), by_second[:5]) == (40, [1, 0, 0, 2, 0])


def test_the_fates_name_outcomes_refusals_and_clients_that_left():
    jobs = [a_job(11, answered_s=12), a_job(11, refused_s=11), a_job(11), a_job(11)]
    assert fates(jobs) == {"left": 2, "succeeded": 1, "backlog_full": 1}


def test_the_plan_has_the_load_of_each_part_and_quiet_tenants_that_send_at_one_rate_throughout():
    times = Times(before=200, burst=200, after=200)
    jobs = plan_burst(5.0, 12.0, times, Clients(), seed=3)
    rates = [sum(begin <= job.at_ms < begin + 200_000 for job in jobs) / 200 for begin in (0, 200_000, 400_000)]
    assert rates == [pytest.approx(6, rel=0.15), pytest.approx(60, rel=0.15), pytest.approx(6, rel=0.15)]
    # Each of two quiet tenants offers half of a twelfth of 12 requests per second.
    quiet = [sum(job.light and begin <= job.at_ms < begin + 200_000 for job in jobs) / 200 for begin in (0, 200_000)]
    assert quiet == [pytest.approx(1, rel=0.25), pytest.approx(1, rel=0.25)]
    assert all(earlier.at_ms <= later.at_ms for earlier, later in pairwise(jobs))


def test_every_client_leaves_when_its_deadline_is_over_and_no_client_tells_its_answer_s_length():
    jobs = plan_burst(2.0, 20.0, TIMES, Clients(), seed=3)
    assert {(job.deadline_ms, job.leaves_after_ms, job.max_tokens) for job in jobs} == {(3_000, 3_000.0, 512)}
    assert max(job.prompt for job in jobs) <= 450


def test_two_prompts_of_at_least_eight_words_begin_differently():
    jobs = [job for job in plan_burst(2.0, 20.0, TIMES, Clients(), seed=3) if job.prompt >= 8]
    beginnings = [tuple(Clients().fields(job)["prompt"].split()[:8]) for job in jobs]
    assert len(set(beginnings)) == len(beginnings)


def test_both_systems_get_the_same_request_for_the_same_job():
    first, again = (plan_burst(2.0, 20.0, TIMES, Clients(), seed=3) for _ in range(2))
    assert [Clients().fields(job) for job in first] == [Clients().fields(job) for job in again]
    assert {len(Clients().fields(job)["prompt"].split()) for job in first} == {job.prompt for job in first}


def test_a_request_names_the_client_s_patience_as_its_deadline_unless_the_benchmark_leaves_it_out():
    job = Clients().impatient([a_job(1)])[0]
    assert Clients().fields(job)["deadline_ms"] == 3_000
    assert "deadline_ms" not in Clients(name_deadline=False).fields(job)
