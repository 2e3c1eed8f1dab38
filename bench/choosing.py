"""Measure what choosing the tokens of a step costs: by each way alone, and in the steps of an engine.

Run it with `python -m bench.choosing`. The ways choose from the same random logits, with default sampling: llama.cpp's
chain of samplers for one row after another, the C library with one thread and more, and NumPy. The engine is stepped
without a store, with greedy and with default sampling in turn.
"""

import argparse
import ctypes
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.common import environment, print_environment, write_results
from bench.engine_models import SHAPES, model_file, rounded
from shared.clock import RealClock
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from workers.engine.backend import Prepared
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine
from workers.engine.sampling import Sampling

_NEVER_S = 1e12
_VOCABULARY, _PROMPT = 128_256, 8
#: Number of calls of each way. Their median counts.
_CALLS = 15


def ways(rows: int, threads: list[int], seed: int) -> dict[str, float]:
    """Return the milliseconds in which each way chooses one token for each of `rows` rows."""
    from workers.engine.choosing.adjusted import Adjustments  # noqa: PLC0415 - `steps` also runs without this package
    from workers.engine.choosing.chooser import Choice, Chooser, Row  # noqa: PLC0415 - see above
    from workers.engine.choosing.largest import Finder, load_library  # noqa: PLC0415 - see above
    from workers.engine.llama.logprobs import Logprobs  # noqa: PLC0415 - see above

    logits = np.random.default_rng(seed).normal(0, 3, (rows, _VOCABULARY)).astype(np.float32)

    def asked(**eighth: Any) -> list[Row]:
        found = []
        for at in range(rows):
            sampling = Sampling(**(eighth if at % 8 == 0 else {}))
            adjustments = Adjustments(sampling, frozenset())
            for token in range(64):
                adjustments.accept(token * 7)
            found.append(Row(at, Choice(sampling, adjustments, at), 9))
        return found

    plain, penalized = asked(), asked(repeat_penalty=1.1, logit_bias=((5, 1.0),))
    chooser = {count: Chooser(Finder(count, load_library())) for count in threads}
    found = {"read once (argmax)": _ms(lambda: logits.argmax(axis=1))}
    for count in threads:
        found[f"C, {count} threads"] = _ms(lambda count=count: chooser[count].choose(logits, plain))  # type: ignore[misc]
    first = chooser[threads[0]]
    found["C, a penalty and a bias in one row of eight"] = _ms(lambda: first.choose(logits, penalized))

    def with_logprobs() -> None:
        tokens = first.choose(logits, plain)
        for at in range(0, rows, 8):
            Logprobs(5, lambda _: b"", lambda _: b"", first.largest).add(logits[at], int(tokens[at]))  # type: ignore[arg-type]

    found["C, logprobs in one row of eight"] = _ms(with_logprobs)
    slow = Chooser(Finder(1, None))
    found["NumPy"] = _ms(lambda: slow.choose(logits, plain))
    with _chain() as sample:
        found["llama.cpp's chain"] = _ms(lambda: [sample(row) for row in logits])
    return found


@contextmanager
def _chain() -> Iterator[Callable[[Any], int]]:
    """Yield a function that samples from one row with llama.cpp's chain."""
    from llama_cpp import llama_cpp as lib  # noqa: PLC0415 - loads the library

    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for part in (
        lib.llama_sampler_init_top_k(40),
        lib.llama_sampler_init_top_p(0.95, 1),
        lib.llama_sampler_init_min_p(0.05, 1),
        lib.llama_sampler_init_temp(0.8),
        lib.llama_sampler_init_dist(1),
    ):
        lib.llama_sampler_chain_add(chain, part)
    candidates = np.zeros(_VOCABULARY, np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    pointer = candidates.ctypes.data_as(lib.llama_token_data_p)

    def sample(row: Any) -> int:
        # llama_sampler_sample copies the logits in the same way.
        candidates["id"], candidates["logit"], candidates["p"] = np.arange(_VOCABULARY), row, 0.0
        array = lib.llama_token_data_array(data=pointer, size=_VOCABULARY, selected=-1, sorted=False)
        lib.llama_sampler_apply(chain, ctypes.byref(array))
        token: int = array.data[array.selected].id
        return token

    yield sample
    lib.llama_sampler_free(chain)


def _ms(call: Callable[[], object]) -> float:
    call()
    took = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return 1000 * median(took)


def steps(path: Path, slots: int, answer: int, rounds: int, device: str = "cpu") -> dict[str, dict[str, float]]:
    """Return for each kind of sampling the tokens a second, and the share of the time that the model computes."""
    ended: set[ClaimRef] = set()

    def note(event: Event) -> None:
        if isinstance(event, Ended):
            ended.add(event.key)

    sizes = {"max_batch_size": slots, "n_ctx": 256, "kv_cells": 256 * slots - 1, "speculation": "off"}
    engine = make_engine(load({}, None, device=device, **sizes), note, model_path=path, clock=RealClock())
    figures: dict[str, dict[str, list[float]]] = {}
    for turn in range(rounds + 1):
        for kind, temperature in (("greedy", 0.0), ("default", 0.8)):
            ended.clear()
            for at in range(slots):
                prompt = np.arange(at, at + _PROMPT, dtype=np.int32) * 11 % engine.backend.n_vocab  # type: ignore[attr-defined]
                sampling = Sampling(temperature=temperature, seed=at, ignore_eos=True)
                spec = JobSpec(ClaimRef(f"{at}", "t"), "blue", {}, answer, _NEVER_S)
                engine.submit(Prepared(spec, _PROMPT, answer, sampling, prompt))
            while engine.stats.steps == 0 or engine.free_capacity().slots:
                engine.step()
            engine.step()
            began, computed, tokens = time.perf_counter(), engine.stats.decode_s, engine.stats.completion_tokens
            while len(ended) < slots:
                engine.step()
            took = time.perf_counter() - began
            if turn:  # the first one warms up
                found = figures.setdefault(kind, {"tokens_per_s": [], "in_model": []})
                found["tokens_per_s"].append((engine.stats.completion_tokens - tokens) / took)
                found["in_model"].append((engine.stats.decode_s - computed) / took)
    engine.backend.close()
    return {kind: {name: median(values) for name, values in found.items()} for kind, found in figures.items()}


def main() -> None:
    """Print the figures, and write them to bench/results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="wide", choices=SHAPES)
    options.add_argument("--slots", type=int, nargs="+", default=[16, 64])
    options.add_argument("--answer", type=int, default=48)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only-steps", action="store_true", help="print one line of JSON, to compare two commits")
    options.add_argument("--models-folder", type=Path, default=Path(tempfile.gettempdir()) / "penstock-bench-models")
    chosen = options.parse_args()
    path = model_file(chosen.model, "f16", chosen.models_folder)
    if chosen.only_steps:
        print(json.dumps({slots: rounded(steps(path, slots, chosen.answer, chosen.rounds)) for slots in chosen.slots}))
        return
    facts = environment(chosen.seed)
    print_environment(facts)
    figures: dict[str, Any] = {"model": chosen.model, "vocabulary": _VOCABULARY}
    figures["ways_ms"] = {rows: rounded(ways(rows, chosen.threads, chosen.seed)) for rows in chosen.slots}
    figures["steps"] = {slots: rounded(steps(path, slots, chosen.answer, chosen.rounds)) for slots in chosen.slots}
    for name in ("ways_ms", "steps"):
        for rows, found in figures[name].items():
            for what, value in found.items():
                print(f"{name} of {rows} rows: {what}: {value}")
    write_results("choosing", facts, figures)


if __name__ == "__main__":
    main()
