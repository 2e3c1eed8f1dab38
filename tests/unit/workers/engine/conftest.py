"""Engines to test: a sim on a held clock, and the real thing on a small random model."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.clock import Clock, HeldClock
from shared.config import load
from workers.demo.random_gguf import write_random_model
from workers.engine.backend import Backend
from workers.engine.events import Ended, Event, JobSpec, Text
from workers.engine.figures import EngineSettings
from workers.engine.llama import LlamaBackend, load_backend
from workers.engine.loop import Engine
from workers.engine.sim import SimBackend

NEVER_S = 1e12


class Driven:
    """An engine with what it has reported; stepped by the test."""

    def __init__(self, backend: Backend, clock: Clock | None = None, **settings: float) -> None:
        self.events: list[Event] = []
        self.engine = Engine(backend, EngineSettings(**settings), self.events.append, clock)

    def submit(self, key: str, payload: dict[str, Any], *, deadline_s: float = NEVER_S, **more: Any) -> None:
        """Prepare and submit a job."""
        max_tokens = payload.get("max_tokens", 16)
        self.engine.submit(self.engine.prepare(JobSpec(key, "blue", payload, max_tokens, deadline_s, **more)))

    def run_dry(self) -> None:
        """Step until there is nothing to do, and look at the books."""
        while self.engine.step():
            pass
        self.check_empty()

    def close(self) -> None:
        """Drop whatever is left, so that the backend can be used again."""
        self.engine.drop_all()

    def check_empty(self) -> None:
        """Nothing is held anywhere, and every job has ended once, with the text that it streamed."""
        self.engine.check_idle()
        room = self.engine.room()
        assert (room.slots, room.cells) == (self.engine.backend.slots, self.engine.backend.cells)
        assert len(self.ended) == sum(isinstance(event, Ended) for event in self.events)
        for key, ended in self.ended.items():
            assert self.streamed(key) == ended.text

    @property
    def ended(self) -> dict[str, Ended]:
        """How each job ended."""
        return {event.key: event for event in self.events if isinstance(event, Ended)}

    def streamed(self, key: str) -> str:
        """The texts of a job's events, put together."""
        return "".join(event.text for event in self.events if isinstance(event, Text) and event.key == key)


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def a_sim(clock: HeldClock) -> Callable[..., Driven]:
    """Makes an engine over a sim whose time is the held clock's."""

    def make(*, slots: int = 2, cells: int = 1000, prefill_tps: float = 1000, decode_tps: float = 10) -> Driven:
        rates = {"prefill_tps": prefill_tps, "decode_tps": decode_tps}
        backend = SimBackend(slots=slots, cells=cells, n_ctx=cells, clock=clock, sleep=clock.advance, **rates)
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
