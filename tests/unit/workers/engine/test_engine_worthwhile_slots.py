"""Tests of the number of slots that a worker on a GPU uses: as many as make it faster, and no step too long."""

import contextlib

import pytest

from shared.settings.settings import load
from tests.support import device_queue
from tests.support.device_queue import DeviceQueue
from tests.support.driven import Driven
from workers.engine.llama.backend import load_backend
from workers.engine.llama.calibration import calibrate


@pytest.fixture
def backend(model_path):
    settings = load({}, None, device="cpu", max_batch_size=64, kv_cells=4096, threads=1)
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
