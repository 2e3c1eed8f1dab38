"""The parts of the GPU benchmark: each measures one thing that could not be verified without a card."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from llama_cpp import _ggml, llama_cpp

from bench import choosing
from bench.device_samplers import CHAINS, DeviceSamplers
from bench.engine_ceiling import Ceiling
from bench.engine_models import Load, Prompts, spread
from bench.gpu_serving import Serving
from shared.jobs.job import ClaimRef
from shared.settings.settings import Settings, load
from workers.engine.backend import BatchRow
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine
from workers.engine.llama.backend import LlamaBackend
from workers.engine.llama.devices import Device, describe, gpus
from workers.engine.llama.load import ModelShape
from workers.engine.loop import Engine

#: Tokens of each prompt and of each answer, and the longest job.
_PROMPT, _ANSWER, _N_CTX = 64, 64, 1024
#: Slots whose answers are compared with those of one slot, and number of these answers.
_COMPARED_SLOTS, _COMPARED = 8, 16
#: Slots of the parts that are about many rows, and how often they are measured.
_MOST_SLOTS, _ROUNDS = 64, 3
#: Longest time that the tests may take, in seconds.
_TESTS_S = 240
#: Prompt tokens whose computation is timed, and how often.
_TIMED_TOKENS, _TIMED = 128, 5

Figures = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """The inputs of all parts: the model's file, the value of PENSTOCK_DEVICE, and the seed of the prompts."""

    path: Path
    device: str
    seed: int
    #: A `llama-server` of the same build, to be measured too.
    server: Path | None = None

    @property
    def serving(self) -> Serving:
        """The servers of the parts that send requests."""
        return Serving(self.path, self.device, self.server, self.seed)

    def settings(self, slots: int, **overrides: Any) -> Settings:
        """Return the settings of an engine with `slots` slots of 1,024 cells each."""
        given = {"device": self.device, "max_batch_size": slots, "n_ctx": _N_CTX, "kv_cells": slots * _N_CTX}
        return load({}, None, **(given | overrides))

    @contextmanager
    def engine(self, events: list[Event], slots: int, **overrides: Any) -> Iterator[Engine]:
        """Load and calibrate the model, and free it in the end."""
        engine = make_engine(self.settings(slots, **overrides), events.append, model_path=self.path)
        try:
            yield engine
        finally:
            engine.backend.close()

    def prompts(self, engine: Engine, n: int) -> list[str]:
        """Return `n` prompts of 64 tokens, always the same."""
        backend = engine.backend
        if not isinstance(backend, LlamaBackend):
            raise TypeError(f"{self.path.name} generates no text")
        source = Prompts(lambda text: len(backend.tokenize(text)) + 1, self.seed)
        return [source.text(_PROMPT) for _ in range(n)]


def devices(_bench: Bench) -> Figures:
    """Return the devices in llama.cpp's order, and their memory."""
    return {"devices": [_described(device) for device in gpus(_ggml.libggml)]}


def tests(_bench: Bench) -> Figures:
    """Run the tests that need a GPU, and return how they ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=_TESTS_S
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")) or " in " in line]
    return {"exit_status": done.returncode, "lines": lines[-12:]}


def clock(bench: Bench) -> Figures:
    """Compare the time that llama_decode takes with the time until the device has computed.

    If the first is much shorter, all durations depend on the engine waiting for the device.
    """
    with bench.engine([], 1) as engine:
        backend: Any = engine.backend
        handed_over, computed = [], []
        synchronize = llama_cpp.llama_synchronize
        for _ in range(_TIMED):
            backend.open_slot(
                0, backend.calibration_job(JobSpec(ClaimRef("clock", "t"), "", {}, 1, 0.0), _TIMED_TOKENS)
            )
            began_s = time.perf_counter()

            def note(ctx: Any, began_s: float = began_s) -> None:
                handed_over.append(time.perf_counter() - began_s)
                synchronize(ctx)

            llama_cpp.llama_synchronize = note
            try:
                backend.decode([BatchRow(0, 0, _TIMED_TOKENS, -1, samples=True)])
            finally:
                llama_cpp.llama_synchronize = synchronize
            computed.append(time.perf_counter() - began_s)
            backend.close_slot(0)
            backend.clear_slot(0)
        return {
            "prompt_tokens": _TIMED_TOKENS,
            "handed_over_ms": 1000 * min(handed_over),
            "computed_ms": 1000 * min(computed),
            "calibrated_prefill_tps": backend.facts.prefill_tps,
        }


def speed(slots: int) -> Callable[[Bench], Figures]:
    """Return a part that measures how many tokens per second `slots` slots generate."""

    def measure(bench: Bench) -> Figures:
        events: list[Event] = []
        with bench.engine(events, slots) as engine:
            prompts = bench.prompts(engine, 2 * slots)
            _run(engine, prompts[:slots])
            before, began_s = replace(engine.stats), time.perf_counter()
            _run(engine, prompts[slots:])
            took_s = time.perf_counter() - began_s
            generated = engine.stats.completion_tokens - before.completion_tokens
            fitted = engine.figures()
            base, row, token = (float(fitted[f"fit_{name}_ms"]) for name in ("call", "row", "prompt_token"))
            return {
                "facts": engine.backend.facts.as_dict(),
                "generated_tps": generated / took_s,
                "outside_the_model": 1 - (engine.stats.decode_s - before.decode_s) / took_s,
                "fit_ms": {"step": base, "row": row, "prompt_token": token},
                "free_bytes": _free_bytes(),
            }

    return measure


def answers(bench: Bench) -> Figures:
    """Return how many greedy answers of eight slots differ from those of one slot."""
    texts = []
    for slots in (1, _COMPARED_SLOTS):
        events: list[Event] = []
        with bench.engine(events, slots) as engine:
            _run(engine, bench.prompts(engine, _COMPARED))
        texts.append({event.key: event.text for event in events if isinstance(event, Ended)})
    alone, together = texts
    return {"compared": len(alone), "different": sum(alone[key] != together[key] for key in alone)}


def cache(bench: Bench) -> Figures:
    """Return the seconds that the same jobs take with a shared and with a split cache."""
    figures: Figures = {}
    for name, value in (("shared_s", True), ("split_s", False)):
        # The engine has no setting for this.
        with patch.object(ModelShape, "shared", value), bench.engine([], _COMPARED_SLOTS) as engine:
            prompts = bench.prompts(engine, 3 * _COMPARED_SLOTS)
            _run(engine, prompts[:_COMPARED_SLOTS])
            began_s = time.perf_counter()
            _run(engine, prompts[_COMPARED_SLOTS:])
            figures[name] = time.perf_counter() - began_s
    return figures


def memory(bench: Bench) -> Figures:
    """Return the free memory with the default number of cells, before and after a step with full slots.

    The free memory must not come near 0: the worker keeps 1.5 GiB free for compute buffers and for other processes.
    """
    before = _free_bytes()
    with bench.engine([], 16, kv_cells="auto", n_ctx="auto") as engine:
        loaded = _free_bytes()
        _run(engine, bench.prompts(engine, 16))
        return {
            "cells": engine.backend.cells,
            "warning": engine.backend.facts.warning,
            "free_bytes": {"before": before, "with_context": loaded, "after_steps": _free_bytes()},
        }


def ceiling(bench: Bench) -> Figures:
    """Return how many tokens per second llama_decode alone computes with their logits, with 64 slots."""
    alone = Ceiling(bench.settings(_MOST_SLOTS), bench.path)
    try:
        load = Load(_MOST_SLOTS, _PROMPT, _ANSWER, 1)
        alone.run(load)
        return {"generated_tps": spread([load.tokens / alone.run(load) for _ in range(_ROUNDS)])}
    finally:
        alone.close()


def samplers(bench: Bench) -> Figures:
    """Return how many tokens per second llama_decode computes if the device chooses them itself, with 64 slots."""
    figures: Figures = {}
    for kind in CHAINS:
        alone = DeviceSamplers(bench.settings(_MOST_SLOTS), bench.path, kind)
        try:
            load = Load(_MOST_SLOTS, _PROMPT, _ANSWER, 1)
            alone.run(load)
            figures[kind] = spread([load.tokens / alone.run(load) for _ in range(_ROUNDS)])
        finally:
            alone.close()
    return {"generated_tps": figures}


def choosing_ways(bench: Bench) -> Figures:
    """Return the milliseconds in which each way chooses the tokens of 64 rows, with one to eight threads."""
    threads = [count for count in (1, 2, 4, 8) if count <= (os.cpu_count() or 1)]
    return {"rows": _MOST_SLOTS, "ms": choosing.ways(_MOST_SLOTS, threads, bench.seed)}


def choosing_steps(bench: Bench) -> Figures:
    """Return the tokens per second, and the model's share of the time, with greedy and with default sampling."""
    return choosing.steps(bench.path, _MOST_SLOTS, _ANSWER, _ROUNDS, device=bench.device)


#: The parts, in the order in which they run.
PARTS: dict[str, Callable[[Bench], Figures]] = {
    "devices": devices,
    "clock": clock,
    "speed_1": speed(1),
    "speed_8": speed(8),
    "speed_32": speed(32),
    "ceiling": ceiling,
    "samplers": samplers,
    "choosing": choosing_ways,
    "steps_64": choosing_steps,
    "http": lambda bench: bench.serving.closed_loops(),
    "prompts": lambda bench: bench.serving.long_prompts(),
    "flood": lambda bench: bench.serving.flood(),
    "answers": answers,
    "cache": cache,
    "memory": memory,
    "tests": tests,
}


def _run(engine: Engine, prompts: list[str]) -> None:
    """Run one greedy job for each prompt, all at once, to their end."""
    for index, prompt in enumerate(prompts):
        payload = {"prompt": prompt, "temperature": 0, "max_tokens": _ANSWER}
        engine.submit(engine.prepare(JobSpec(ClaimRef(str(index), "t"), f"tenant{index}", payload, _ANSWER, 1e12)))
    while engine.step():
        pass
    engine.check_idle()


def _described(device: Device) -> Figures:
    return {
        "name": device.name,
        "description": device.description,
        "integrated": device.integrated,
        "free_bytes": device.free_bytes,
        "total_bytes": device.total_bytes,
    }


def _free_bytes() -> list[int]:
    return [describe(_ggml.libggml, device.handle).free_bytes for device in gpus(_ggml.libggml)]
