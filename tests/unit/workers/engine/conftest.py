"""Engines to test: a sim on a held clock, and the real thing on a small random model."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.clock import HeldClock
from shared.settings.settings import load
from tests.support.driven import Driven
from workers.demo.random_gguf import write_random_model
from workers.engine.llama.backend import LlamaBackend, load_backend
from workers.engine.sim import SimBackend


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def a_sim(clock: HeldClock) -> Callable[..., Driven]:
    """Makes an engine over a sim whose time is the held clock's."""

    def make(*, slots: int = 2, cells: int = 1000, prefill_tps: float = 1000, decode_tps: float = 10) -> Driven:
        throughput = {"prefill_tps": prefill_tps, "decode_tps": decode_tps}
        backend = SimBackend(slots=slots, cells=cells, n_ctx=cells, clock=clock, sleep=clock.advance, **throughput)
        return Driven(backend, clock)

    return make


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of 1 MB, whose answers differ from prompt to prompt."""
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    write_random_model(path)
    return path


@pytest.fixture(scope="session", params=[("shared", 4096), ("split", 16384)], ids=["shared", "split"])
def backend(model_path: Path, request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    """That model on the CPU with eight slots, which share one cache or have each a part of it."""
    cache, cells = request.param
    settings = load({}, None, device="cpu", max_batch_size=8, kv_cells=cells, threads=1)
    backend = load_backend(settings, model_path)
    assert backend.facts.cache == cache
    yield backend
    backend.close()


@pytest.fixture
def driven(backend: LlamaBackend) -> Iterator[Driven]:
    """An engine over the real model; whatever the test leaves is dropped."""
    with contextlib.closing(Driven(backend)) as driven:
        yield driven
