"""Tests of the slots and of the prompt tokens in a step on a GPU: as many as make it faster, and no step too long."""

import contextlib

import pytest

from shared.settings.settings import load
from tests.support import device_queue
from tests.support.device_queue import DeviceQueue
from tests.support.driven import Driven
from workers.engine.llama.backend import load_backend
from workers.engine.llama.calibration import calibrate
from workers.engine.sizing import chunk_of


@pytest.fixture
def backend(model_path):
    settings = load({}, None, device="cpu", max_batch_size=64, kv_cells=4096, threads=1, prefill_chunk=1984)
    with contextlib.closing(load_backend(settings, model_path)) as backend:
        assert backend.facts.cache == "shared"
        yield backend


@pytest.fixture
def device(monkeypatch, clock):
    """Return a function that sets the seconds that a step takes on the device, and for each of its tokens."""

    def takes(step_s, token_s):
        monkeypatch.setattr(device_queue, "BATCH_S", step_s)
        monkeypatch.setattr(device_queue, "TOKEN_S", token_s)
        DeviceQueue(monkeypatch, clock)

    return takes


@pytest.mark.parametrize(
    ("step_s", "token_s", "slots"),
    [
        # 64 slots generate 1.96 times the tokens of 32.
        (0.010, 0.00001, 64),
        # 16 slots generate 1.25 times the tokens of 8, 32 1.15 times those of 16, and 64 1.08 times those of 32.
        (0.010, 0.00075, 32),
        # Each token takes as long as it does alone.
        (0.0, 0.002, 8),
        # A step of 64 slots would take 51.8 ms.
        (0.045, 0.00107 / 10, 32),
        # Even a step of 8 slots takes 80 ms: fewer would not be a batch.
        (0.080, 0.0, 8),
    ],
)
def test_twice_as_many_slots_are_used_while_they_generate_a_tenth_more(backend, clock, device, step_s, token_s, slots):
    device(step_s, token_s)
    facts, _ = calibrate(backend, clock, longest_step_ms=50.0)
    assert (facts.slots, backend.slots) == (slots, slots)
    assert facts.step_ms == pytest.approx(1000 * (step_s + token_s * slots), rel=0.01)


def test_a_slow_device_is_not_tried_for_longer_than_some_seconds(backend, clock, device):
    device(0.5, 0.0)
    began_s = clock.monotonic()
    facts, _ = calibrate(backend, clock, longest_step_ms=10_000.0)
    assert facts.slots == 16
    assert clock.monotonic() - began_s < 60


def test_an_engine_with_fewer_slots_than_its_context_runs_as_many_jobs_at_once(backend, clock, device):
    device(0.010, 0.00075)
    backend.facts, _ = calibrate(backend, clock, longest_step_ms=50.0)
    with contextlib.closing(Driven(backend, clock)) as driven:
        assert driven.engine.free_capacity().slots == backend.facts.slots == 32
        for i in range(40):
            driven.submit(f"{i}", {"prompt": f"dibo {i}", "temperature": 0, "max_tokens": 8})
        at_once = 0
        while driven.engine.step():
            at_once = max(at_once, 32 - driven.engine.free_capacity().slots)
        driven.check_empty()
        assert (len(driven.ended), at_once) == (40, 32)


@pytest.mark.parametrize(
    ("step_s", "token_s", "chunk"),
    [
        # 1,024 tokens in a step are computed 1.11 times as fast as 512, and 1,984 tokens 1.06 times as fast as 1,024.
        (0.010, 0.00008, 1984),
        # 1,024 tokens are computed 1.047 times as fast as 512.
        (0.004, 0.00008, 512),
        # 1,984 tokens are computed 1.045 times as fast as 1,024.
        (0.010, 0.0001, 1024),
        # 1,984 tokens would take 368 ms.
        (0.070, 0.00015, 1024),
        # Even 512 tokens take more than a quarter of a second: fewer would not be faster.
        (0.1, 0.001, 512),
    ],
)
def test_a_step_gets_more_prompt_tokens_while_they_are_computed_a_twentieth_faster(
    backend, clock, device, step_s, token_s, chunk
):
    device(step_s, token_s)
    began_s = clock.monotonic()
    facts, _ = calibrate(backend, clock, measures_chunk=True)
    assert facts.prefill_chunk == chunk
    assert clock.monotonic() - began_s < 60


def test_a_set_number_of_prompt_tokens_is_not_measured(backend, clock, device):
    device(0.010, 0.00001)
    facts, _ = calibrate(backend, clock)
    assert facts.prefill_chunk == 1984


def test_the_most_prompt_tokens_of_a_step_fit_into_one_batch_of_the_device_with_all_answers():
    auto, chosen = load({}, None), load({}, None, prefill_chunk=777)
    assert [chunk_of(auto, slots, gpu=True) for slots in (1, 64, 1_024, 2_000)] == [2_047, 1_984, 1_024, 512]
    assert chunk_of(auto, 64, gpu=False) == 512
    assert [chunk_of(chosen, 64, gpu=gpu) for gpu in (True, False)] == [777, 777]
