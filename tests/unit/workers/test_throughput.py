"""Tests of the rates that a worker reports: first those of its calibration, then those that it measures."""

import pytest

from shared.clock import ManualClock
from shared.jobs import cost
from shared.jobs.job import Usage
from shared.settings.settings import load
from workers.duties.throughput import Throughput
from workers.engine.factory import make_engine
from workers.upstream.factory import make_upstream_engine


@pytest.fixture
def scene():
    """A sim of 4 slots, each with 1000 prompt words and 20 generated words a second; a generated token costs 4."""
    environ = {"PENSTOCK_ENGINE": "sim", "PENSTOCK_SIM_PREFILL_TPS": "1000", "PENSTOCK_MAX_BATCH_SIZE": "4"}
    clock = ManualClock()
    engine = make_engine(load(environ=environ, dotenv=None), lambda _event: None, clock=clock)
    return Throughput(engine, 4, clock), engine.stats, clock


@pytest.fixture
def server_rates():
    """The rates of an upstream. Nothing is known about it before its first answer."""
    environ = {"PENSTOCK_ENGINE": "upstream", "PENSTOCK_UPSTREAM_URL": "http://x/v1", "PENSTOCK_UPSTREAM_MODEL": "m"}
    clock = ManualClock()
    settings = load(environ=environ, dotenv=None)
    return Throughput(make_upstream_engine(settings, print, on_ending=lambda: None, clock=clock), 4, clock)


def test_before_any_job_ran_the_rates_are_those_of_the_calibration(scene):
    throughput, _, _ = scene
    rates = throughput.rates(full=False)
    seconds = 1 / 4000 + 1 / 80
    assert rates == {
        "mu_wtps": pytest.approx(5 / seconds, abs=0.1),
        "generated_tps": pytest.approx(1 / seconds, abs=0.1),
        "prefill_tps": 1000.0,
        "tpot_ms": 50.0,
    }


def test_ended_jobs_update_the_prefill_rate_and_the_time_per_token(scene):
    throughput, _, _ = scene
    for _ in range(100):
        throughput.record_usage(Usage(prompt_tokens=500, completion_tokens=11, prefill_ms=1_000, decode_ms=1_000))
    assert throughput.rates(full=False)["prefill_tps"] == pytest.approx(500, rel=0.01)
    assert throughput.rates(full=False)["tpot_ms"] == pytest.approx(100, rel=0.01)


def test_the_rates_are_those_of_all_tokens_together_and_not_the_mean_of_the_jobs_rates(scene):
    throughput, _, _ = scene
    for _ in range(100):
        throughput.record_usage(Usage(prompt_tokens=100, completion_tokens=11, prefill_ms=50, decode_ms=300))
        throughput.record_usage(Usage(prompt_tokens=900, completion_tokens=191, prefill_ms=950, decode_ms=1_700))
    assert throughput.rates(full=False)["prefill_tps"] == pytest.approx(1_000, rel=0.02)
    assert throughput.rates(full=False)["tpot_ms"] == pytest.approx(2_000 / 200, rel=0.06)


def test_a_lasting_change_of_speed_is_followed_even_if_it_is_larger_than_one_job_may_count(scene):
    throughput, _, _ = scene
    for _ in range(200):
        throughput.record_usage(Usage(prompt_tokens=500, completion_tokens=11, prefill_ms=50_000, decode_ms=50_000))
    assert throughput.rates(full=False)["prefill_tps"] == pytest.approx(10, rel=0.05)
    assert throughput.rates(full=False)["tpot_ms"] == pytest.approx(5_000, rel=0.05)


def test_one_outlier_changes_the_rates_only_a_little(scene):
    throughput, _, _ = scene
    throughput.record_usage(Usage(prompt_tokens=500, completion_tokens=2, prefill_ms=100_000, decode_ms=5_000))
    assert throughput.rates(full=False)["prefill_tps"] > 800
    assert throughput.rates(full=False)["tpot_ms"] < 700


@pytest.mark.parametrize(
    "usage",
    [
        Usage(),
        Usage(prompt_tokens=5, completion_tokens=1, prefill_ms=900, decode_ms=0),
        Usage(prompt_tokens=500, cached_tokens=490, completion_tokens=1, prefill_ms=900),
    ],
)
def test_a_job_with_too_few_computed_tokens_changes_no_rate(scene, usage):
    throughput, _, _ = scene
    before = throughput.rates(full=False)
    throughput.record_usage(usage)
    assert throughput.rates(full=False) == before


def test_the_work_rate_is_measured_only_between_two_heartbeats_with_all_slots_taken(scene):
    throughput, stats, clock = scene
    first = throughput.rates(full=False)["mu_wtps"]
    for full in (True, False, True, False):
        clock.advance(1.0)
        stats.completion_tokens += 10
        assert throughput.rates(full=full)["mu_wtps"] == first
    throughput.rates(full=True)
    for _ in range(60):
        clock.advance(0.5)
        stats.completion_tokens += 30
        stats.prompt_tokens += 50
        throughput.rates(full=True)
    assert throughput.rates(full=True)["mu_wtps"] == pytest.approx((30 * 4 + 50) / 0.5, rel=0.01)
    assert throughput.rates(full=True)["generated_tps"] == pytest.approx(30 / 0.5, rel=0.01)


def test_tokens_per_byte_is_reported_only_after_enough_prompt_text(scene):
    throughput, _, _ = scene
    throughput.sizes.observe({"prompt": "x" * 1_000}, 400)
    assert "tokens_per_byte" not in throughput.rates(full=False)
    throughput.sizes.observe({"prompt": "é" * 1_000}, 800)
    assert throughput.rates(full=False)["tokens_per_byte"] == pytest.approx(0.4)


def test_tokens_that_a_chat_template_adds_do_not_count_in_tokens_per_byte(scene):
    throughput, _, _ = scene
    messages = [{"role": "user", "content": "x" * 500}] * 10
    payload = {"messages": messages}
    for _ in range(5):
        throughput.sizes.observe(payload, 1_000 + 4 * len(messages))
    tokens_per_byte = throughput.rates(full=False)["tokens_per_byte"]
    assert tokens_per_byte == pytest.approx(0.2)
    assert cost.estimate(payload, tokens_per_byte=tokens_per_byte) == 1_040


def test_tokens_per_byte_follows_a_change_in_the_kind_of_prompts(scene):
    throughput, _, _ = scene
    for tokens in (100, 900):
        for _ in range(800):
            throughput.sizes.observe({"prompt": "x" * 1_000}, tokens)
    assert throughput.rates(full=False)["tokens_per_byte"] == pytest.approx(0.9, abs=0.01)


def serve(throughput: Throughput, jobs: float, *, tokens: int, seconds: float = 1.0, full: bool = False) -> dict:
    """Let the server compute tokens, prompt tokens and generated ones alike, with this many jobs; return the rates."""
    stats = throughput._engine.stats
    stats.prompt_tokens += tokens // 2
    stats.completion_tokens += tokens // 2
    stats.jobs_s += jobs * seconds
    stats.jobs_squared_s += jobs**2 * seconds
    throughput._clock.advance(seconds)
    return throughput.rates(full=full)


def test_an_engine_that_was_not_calibrated_has_rates_after_its_first_job(server_rates):
    throughput = server_rates
    assert set(throughput.rates(full=False).values()) == {0.0}
    throughput.record_usage(Usage(prompt_tokens=10, completion_tokens=11, prefill_ms=20, decode_ms=200))
    rates = serve(throughput, 1, tokens=20, seconds=0.1)
    assert (rates["prefill_tps"], rates["tpot_ms"]) == (500.0, 20.0)
    # It is assumed that half of a token's time grows with the 4 slots: 4 jobs take 2.5 times as long as one.
    assert rates["mu_wtps"] == pytest.approx(4 / 2.5 * (10 + 4 * 10) / 0.1, rel=0.001)
    assert rates["generated_tps"] == pytest.approx(4 / 2.5 * 10 / 0.1, rel=0.001)
    # A short prompt counts only while nothing better is known.
    throughput.record_usage(Usage(prompt_tokens=10, completion_tokens=11, prefill_ms=900, decode_ms=200))
    assert throughput.rates(full=False)["prefill_tps"] == 500.0


def test_the_rates_of_a_server_that_computes_one_job_as_fast_as_many_do_not_grow_with_its_slots(server_rates):
    throughput = server_rates
    for jobs in (1, 2, 3, 4):
        rates = serve(throughput, jobs, tokens=1_000)
    assert rates["mu_wtps"] == pytest.approx(500 + 4 * 500, rel=0.05)
    throughput._engine._concurrency.limit = 32
    assert throughput.rates(full=False)["mu_wtps"] < 1.25 * (500 + 4 * 500)


@pytest.mark.parametrize("slots", [8, 16, 64])
def test_with_more_slots_than_were_measured_the_rates_grow_as_they_have_grown_with_fewer(server_rates, slots):
    throughput = server_rates
    engine = throughput._engine
    # A step takes 10 ms whatever the number of its rows.
    for jobs in (1, 2, 3):
        serve(throughput, jobs, tokens=200 * jobs)
    serve(throughput, 4, tokens=800, full=True)
    measured = serve(throughput, 4, tokens=800, full=True)
    assert measured["mu_wtps"] == pytest.approx(400 + 4 * 400)
    engine._concurrency.limit = slots
    assert 1.5 < throughput.rates(full=False)["mu_wtps"] / measured["mu_wtps"] < slots / 4
    # The first measurement with this many slots counts as it is.
    throughput.rates(full=True)
    assert serve(throughput, slots, tokens=1_000, full=True)["mu_wtps"] == pytest.approx(500 + 4 * 500)
    engine._concurrency.limit = 4
    assert throughput.rates(full=False)["mu_wtps"] == pytest.approx(500 + 4 * 500)
