"""Fixtures for engine tests: an engine over a sim with a manual clock, and one over a small random llama model."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.clock import ManualClock
from shared.settings.settings import load
from tests.support.driven import Driven
from tests.support.harmony_model import load_harmony
from workers.demo.random_gguf import write_random_model
from workers.engine.llama.backend import LlamaBackend, load_backend
from workers.engine.sim import SimBackend


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def a_sim(clock: ManualClock) -> Callable[..., Driven]:
    """A function that makes an engine over a sim. Only the manual clock moves its time."""

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
    """A backend with that model on the CPU and eight slots. They share one KV cache, or each has its own part of it."""
    cache, cells = request.param
    settings = load({}, None, device="cpu", max_batch_size=8, kv_cells=cells, threads=1)
    backend = load_backend(settings, model_path)
    assert backend.facts.cache == cache
    yield backend
    backend.close()


@pytest.fixture
def driven(backend: LlamaBackend) -> Iterator[Driven]:
    """An engine over the llama backend. Jobs that the test leaves unfinished are dropped."""
    with contextlib.closing(Driven(backend)) as driven:
        yield driven


@pytest.fixture(scope="module", params=[True, False], ids=["tokens", "text"])
def harmony(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaBackend]:
    """A random model of gpt-oss's family, with its marks as control tokens or as plain text."""
    backend = load_harmony(model_path, tmp_path_factory.mktemp("harmony") / "m.gguf", as_tokens=request.param)
    yield backend
    backend.close()
