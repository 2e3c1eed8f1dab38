"""A worker's rates: from the calibration first, then from what it really does."""

import pytest

from shared.clock import HeldClock
from shared.jobs import cost
from shared.jobs.job import Usage
from shared.settings.settings import load
from workers.duties.throughput import Throughput
from workers.engine.factory import make_engine


@pytest.fixture
def scene():
    """A sim of 4 slots: 1000 prompt words a second and 20 generated ones, each slot; a generated one weighs 4."""
    environ = {"PENSTOCK_ENGINE": "sim", "PENSTOCK_SIM_PREFILL_TPS": "1000", "PENSTOCK_MAX_BATCH_SIZE": "4"}
    clock = HeldClock()
    engine = make_engine(load(environ=environ, dotenv=None), lambda _event: None, clock=clock)
    return Throughput(engine, 4, clock), engine.stats, clock


def test_before_anything_ran_the_rates_are_the_calibrations(scene):
    throughput, _, _ = scene
    told = throughput.figures(full=False)
    assert told == {"mu_wtps": pytest.approx(5 / (1 / 4000 + 1 / 80), abs=0.1), "prefill_tps": 1000.0, "tpot_ms": 50.0}


def test_jobs_that_ended_move_the_prefill_rate_and_the_time_per_token(scene):
    throughput, _, _ = scene
    for _ in range(100):
        throughput.ended(Usage(prompt_tokens=500, completion_tokens=11, prefill_ms=1_000, decode_ms=1_000))
    assert throughput.figures(full=False)["prefill_tps"] == pytest.approx(500, rel=0.01)
    assert throughput.figures(full=False)["tpot_ms"] == pytest.approx(100, rel=0.01)


def test_one_odd_job_does_not_turn_the_figures_over(scene):
    throughput, _, _ = scene
    throughput.ended(Usage(prompt_tokens=500, completion_tokens=2, prefill_ms=100_000, decode_ms=5_000))
    assert throughput.figures(full=False)["prefill_tps"] > 800
    assert throughput.figures(full=False)["tpot_ms"] < 700


@pytest.mark.parametrize(
    "usage",
    [
        Usage(),
        Usage(prompt_tokens=5, completion_tokens=1, prefill_ms=900, decode_ms=0),
        Usage(prompt_tokens=500, cached_tokens=490, completion_tokens=1, prefill_ms=900),
    ],
)
def test_what_tells_nothing_moves_nothing(scene, usage):
    throughput, _, _ = scene
    before = throughput.figures(full=False)
    throughput.ended(usage)
    assert throughput.figures(full=False) == before


def test_the_rate_of_work_is_learned_between_two_full_beats_only(scene):
    throughput, stats, clock = scene
    first = throughput.figures(full=False)["mu_wtps"]
    for full in (True, False, True, False):
        clock.advance(1.0)
        stats.completion_tokens += 10
        assert throughput.figures(full=full)["mu_wtps"] == first
    throughput.figures(full=True)
    for _ in range(60):
        clock.advance(0.5)
        stats.completion_tokens += 30
        stats.prompt_tokens += 50
        throughput.figures(full=True)
    assert throughput.figures(full=True)["mu_wtps"] == pytest.approx((30 * 4 + 50) / 0.5, rel=0.01)


def test_the_tokens_of_a_byte_are_told_once_some_pages_of_prompts_were_seen(scene):
    throughput, _, _ = scene
    throughput.prompted({"prompt": "x" * 1_000}, 400)
    assert "tokens_per_byte" not in throughput.figures(full=False)
    throughput.prompted({"prompt": "é" * 1_000}, 800)
    assert throughput.figures(full=False)["tokens_per_byte"] == pytest.approx(0.4)


def test_what_a_template_puts_around_messages_is_not_their_texts(scene):
    throughput, _, _ = scene
    messages = [{"role": "user", "content": "x" * 500}] * 10
    payload = {"messages": messages}
    for _ in range(5):
        throughput.prompted(payload, 1_000 + 4 * len(messages))
    told = throughput.figures(full=False)["tokens_per_byte"]
    assert told == pytest.approx(0.2)
    assert cost.estimate(payload, tokens_per_byte=told) == 1_040


def test_prompts_of_another_kind_move_the_tokens_of_a_byte(scene):
    throughput, _, _ = scene
    for tokens in (100, 900):
        for _ in range(800):
            throughput.prompted({"prompt": "x" * 1_000}, tokens)
    assert throughput.figures(full=False)["tokens_per_byte"] == pytest.approx(0.9, abs=0.01)
