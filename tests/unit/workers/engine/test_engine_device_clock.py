"""Tests that durations are those of the device, not those of handing work to it: a GPU computes behind llama_decode."""

import contextlib

import pytest

from shared.settings.settings import load
from tests.support.device_queue import BATCH_S, TOKEN_S, DeviceQueue
from tests.support.driven import Driven
from workers.engine.llama.backend import load_backend
from workers.engine.llama.calibration import calibrate

#: A cache that is shared, as on a GPU.
shared_cache = pytest.mark.parametrize("backend", [("shared", 4096)], indirect=True, ids=["shared"])
PROMPT = "dibo kufe moza talu " * 60


@pytest.fixture
def queue(monkeypatch, clock):
    return DeviceQueue(monkeypatch, clock)


def device_ms(tokens, batches=1):
    return 1000 * (BATCH_S * batches + TOKEN_S * tokens)


@shared_cache
def test_the_calibration_measures_the_device(backend, clock, queue):
    Driven(backend, clock)  # clears the slots, which another test may have used
    facts, fit = calibrate(backend, clock)
    assert facts.prefill_tps == pytest.approx(1000 * 128 / device_ms(128), rel=0.01)
    assert facts.step_ms == pytest.approx(device_ms(backend.slots), rel=0.01)
    assert facts.decode_tps == pytest.approx(1000 * backend.slots / device_ms(backend.slots), rel=0.01)
    assert fit.predict_ms(rows=0) == pytest.approx(device_ms(0), rel=0.01)
    assert fit.tokens_within(90, 0) == pytest.approx(90 / device_ms(1, batches=0), rel=0.02)


@shared_cache
@pytest.mark.parametrize("chunk", [32, 512])
def test_the_planners_fit_is_that_of_the_device_also_after_steps_that_sample_nothing(backend, clock, queue, chunk):
    driven = Driven(backend, clock, prefill_chunk=chunk, step_target_ms=1000.0, reuse=False)
    driven.submit("decoding", {"prompt": "dibo", "temperature": 0, "max_tokens": 30})
    for i in range(8):
        driven.submit(f"long{i}", {"prompt": f"{i} {PROMPT}"[: 300 + 90 * i], "temperature": 0, "max_tokens": 8})
    driven.run_until_idle()
    base_ms, row_ms, token_ms, _, _ = driven.engine._fit.coefficients()
    assert (base_ms, row_ms, token_ms) == pytest.approx((device_ms(0), 0.4, 0.4), rel=0.05)
    assert driven.engine.stats.decode_s == pytest.approx(queue.busy_s)
    assert driven.engine._fit.tokens_within(90, 0) == pytest.approx(90 / 0.4, rel=0.06)


@shared_cache
def test_the_times_of_a_job_are_those_of_the_device(backend, clock, queue):
    driven = Driven(backend, clock, prefill_chunk=64, step_target_ms=1000.0, reuse=False)
    driven.submit("a", {"prompt": PROMPT, "temperature": 0, "max_tokens": 11})
    driven.run_until_idle()
    usage = driven.ended["a"].usage
    assert usage.completion_tokens == 11
    assert usage.prefill_ms == pytest.approx(device_ms(usage.prompt_tokens, -(-usage.prompt_tokens // 64)), abs=1)
    assert usage.ttft_ms == usage.prefill_ms
    assert usage.decode_ms == pytest.approx(10 * device_ms(1), abs=1)


def test_the_rates_of_an_embedding_model_are_those_of_the_device(model_path, clock, queue):
    settings = load({}, None, device="cpu", threads=1, pooling="mean", prefill_chunk=512, n_ctx=512)
    backend = load_backend(settings, model_path)
    with contextlib.closing(backend):
        facts = backend.calibrated_facts(clock, generated_weight=4)
        tokens = round(queue.busy_s / 2 / TOKEN_S - BATCH_S / TOKEN_S)
        assert facts.prefill_tps == pytest.approx(1000 * tokens / device_ms(tokens), rel=0.01)
