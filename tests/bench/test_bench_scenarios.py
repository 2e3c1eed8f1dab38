"""Tests the scenarios: the load that they offer, their figures, the verdicts of the table, and that runs are stored."""

import json

import pytest

from bench import scenarios
from bench.sim.asks import MODEL, SimJob
from bench.sim.ledger import Window
from bench.sim.simulation import Run
from bench.sim.stress import table
from bench.sim.stress.cases import CASES
from bench.sim.stress.figures import figures, predictions, returns
from bench.sim.stress.runs import case_jobs
from bench.sim.stress.streams import loaded, mix, zipf

WINDOW = Window(0, 100_000)


def a_job(*, admitted=True, outcome="succeeded", ended_ms=2_000.0, at_ms=0.0, **fields):
    job = SimJob(0, "blue", at_ms, 10, 5, 20, 10_000)
    job.sent_ms, job.attempts = at_ms, 1
    if admitted:
        job.admitted_ms, job.claimed_ms, job.outcome, job.ended_ms = at_ms, at_ms + 1_000.0, outcome, ended_ms
        job.first_token_ms = job.claimed_ms
    else:
        job.refusal, job.gave_up_ms = "inflight_full", at_ms
    for name, value in fields.items():
        setattr(job, name, value)
    return job


@pytest.mark.parametrize("name", CASES)
def test_the_jobs_of_a_scenario_offer_its_load(name):
    case = CASES[name]
    capacity_wtps = dict.fromkeys(case.pools, 20_000.0)
    jobs = case_jobs(case, 1, capacity_wtps)
    for model in case.pools:
        load = sum(load * seconds for load, seconds in case.phases) * case.loads.get(model, 1.0)
        offered_wt = sum(job.cost_wt for job in jobs if job.model == model)
        # The answers of one scenario become longer in mid-run, after the load was computed.
        assert offered_wt / 20_000 == pytest.approx(load, rel=0.25) or name == "answers-4x"
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert any(job.light for job in jobs)


def test_light_tenants_offer_the_same_at_every_load():
    def light(load):
        return [stream.share for stream in loaded(zipf(50, 5), load, {}) if stream.light]

    assert light(1.0) == light(10.0) == [0.5 / 55] * 5
    assert sum(stream.share for stream in loaded(zipf(50, 5), 3.0, {})) == pytest.approx(3.0)


def test_the_mix_of_a_closed_loop_has_the_proportions_of_the_streams():
    jobs = mix(zipf(3, 1), 1_000, seed=1)
    assert len(jobs) == 1_000
    assert 0.4 < sum(job.tenant == "t000" for job in jobs) / 1_000 < 0.6
    assert {job.deadline_ms for job in jobs} == {10_000_000}


def test_a_promise_is_kept_if_an_admitted_job_whose_client_stayed_is_answered_in_time():
    jobs = [
        a_job(),
        a_job(outcome="expired"),
        a_job(outcome="canceled", gone=True),
        a_job(admitted=False),
    ]
    got = figures(Run(jobs, [], 100.0), WINDOW, {MODEL: 1_000.0})
    assert (got["kept"], got["promised"]) == (0.5, 2)
    assert got["broken"] == {"expired running": 1}


def test_predictions_are_compared_with_what_happened():
    # Both were claimed after 1,000 ms and ended after 2,000 ms.
    jobs = [
        a_job(predicted_start_ms=900.0, predicted_end_ms=2_500.0, predicted_interval_ms=(1_500.0, 3_000.0)),
        a_job(predicted_start_ms=100.0, predicted_end_ms=1_000.0, predicted_interval_ms=(900.0, 1_100.0)),
    ]
    got = predictions(jobs)
    assert got["start_close"] == 0.5
    assert (got["end_inside"], got["end_width_ms"]) == (0.5, 1_500.0)
    assert (got["start_late_ms"]["p10"], got["start_late_ms"]["p90"]) == (100.0, 900.0)
    assert (got["end_late_ms"]["p10"], got["end_late_ms"]["p90"]) == (-500.0, 1_000.0)
    assert predictions([a_job()]) == {}


def test_only_returns_within_a_fifth_after_the_hint_are_judged():
    def returned(after_ms, *, admitted):
        return a_job(
            admitted=admitted, refusal="inflight_full", first_hint_ms=1_000.0, returned_ms=after_ms,
            return_admitted=admitted, attempts=2,
        )  # fmt: skip

    untold = a_job(admitted=False)
    got = returns([returned(1_000, admitted=True), returned(1_150, admitted=False), returned(1_300, admitted=False),
                   returned(900, admitted=False), untold])  # fmt: skip
    assert got == {"told": 0.8, "returns": 2, "returns_admitted": 0.5, "attempts_per_told": 1.0}


def some_figures(useful, light):
    return {"useful": useful, "light": light, "kept": 1.0, "waste": 0.0, "light_misses": {}, "broken": {}}


def test_the_table_says_where_ours_is_not_first_or_close_to_it():
    runs = {
        ("usual-3x", "ours"): {11: some_figures(0.95, 1.0), 12: some_figures(0.97, 0.9), 13: some_figures(0.99, 1.0)},
        ("usual-3x", "RR"): {11: some_figures(0.99, 0.5)},
    }
    assert table.behind(runs, "usual-3x", "useful") == pytest.approx(0.02)
    assert table.behind(runs, "usual-3x", "light") == 0
    lines = table.markdown(runs).splitlines()
    useful, light = (next(line for line in lines if figure in line) for figure in ("| useful work |", "success |"))
    assert "0.970 (0.950)" in useful
    assert "**no**: 0.020 below" in useful
    assert light.endswith("| yes |")


def test_a_stored_run_is_not_repeated_and_runs_end_up_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(scenarios, "_KEPT", tmp_path)
    task = scenarios.Task("tenants-3", "RR", 1, bound=2, seconds=3.0)
    first = scenarios.run_all([task], 1)[task]
    assert json.loads(task.path.read_text()) == json.loads(json.dumps(first))
    task.path.write_text(json.dumps({"useful": "stored"}))
    assert scenarios.run_all([task], 1)[task] == {"useful": "stored"}
