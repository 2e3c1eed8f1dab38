"""Measure what several answers to one prompt cost: side by side, one after another, and as jobs of their own.

Run it with `python -m bench.candidates`. The engine is stepped without a store. Each round measures, in an order that
rotates: the prompt alone, eight jobs that decode together after the same prompt, one job with eight candidates in eight
slots, and the same job in one slot. Every answer has the same length.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.common import environment, print_environment, write_results
from bench.engine_models import model_file
from shared.clock import RealClock
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from workers.engine.backend import Prepared
from workers.engine.events import Ended, Event, JobSpec
from workers.engine.factory import make_engine
from workers.engine.loop import Engine
from workers.engine.sampling import Sampling

N = 8
_NEVER_S = 1e12


class Measured:
    """One engine, and how long its jobs take. Each round has a prompt of its own, which nothing has computed before."""

    def __init__(self, path: Path, slots: int, prompt_tokens: int, answer_tokens: int) -> None:
        cells = (slots + 1) * (prompt_tokens + answer_tokens)
        settings = load({}, None, device="cpu", max_batch_size=slots, n_ctx=cells // (slots + 1), kv_cells=cells)
        self._prompt_tokens, self._answer_tokens, self._round = prompt_tokens, answer_tokens, 0
        self._open: set[ClaimRef] = set()
        self.engine: Engine = make_engine(settings, self._note, model_path=path, clock=RealClock())

    def _note(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._open.discard(event.key)

    def next_round(self) -> None:
        """Use another prompt from now on."""
        self._round += 1

    def _submit(self, name: str, answer_tokens: int, candidates: int = 1) -> None:
        key = ClaimRef(name, "t")
        spec = JobSpec(key, "blue", {}, answer_tokens, _NEVER_S)
        made: Prepared = self.engine.backend.calibration_job(spec, self._prompt_tokens)  # type: ignore[attr-defined]
        prompt = (made.prompt + self._round) % self.engine.backend.n_vocab  # type: ignore[attr-defined]
        sampling = Sampling(seed=self._round, ignore_eos=True)
        job = Prepared(spec, self._prompt_tokens, answer_tokens, sampling, prompt, candidates=candidates)
        self._open.add(key)
        self.engine.submit(job)

    def _finish(self) -> float:
        began = time.perf_counter()
        while self._open:
            self.engine.step()
        return time.perf_counter() - began

    def prefill_s(self) -> float:
        """Return how long the prompt takes, with one token of an answer."""
        self._submit(f"prefill {self._round}", 1)
        return self._finish()

    def decode_s(self) -> float:
        """Return how long eight jobs decode together whose prompt is computed already. Call it after `prefill_s`."""
        for i in range(N):
            self._submit(f"row {i} {self._round}", self._answer_tokens)
        return self._finish()

    def candidates_s(self) -> float:
        """Return how long one job with eight candidates takes."""
        self._submit(f"candidates {self._round}", self._answer_tokens, N)
        return self._finish()


def measure(path: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the median of each time in s, and how many prompt tokens the job with candidates computed."""
    beside = Measured(path, N, chosen.prompt, chosen.answer)
    in_turn = Measured(path, 1, chosen.prompt, chosen.answer)
    times: dict[str, list[float]] = {"prefill_s": [], "decode_s": [], "beside_s": [], "in_turn_s": []}
    computed = []

    def rows() -> None:
        beside.next_round()
        times["prefill_s"].append(beside.prefill_s())
        times["decode_s"].append(beside.decode_s())

    def side_by_side() -> None:
        beside.next_round()
        before = beside.engine.stats.prompt_tokens
        times["beside_s"].append(beside.candidates_s())
        computed.append(beside.engine.stats.prompt_tokens - before)

    def one_after_another() -> None:
        in_turn.next_round()
        times["in_turn_s"].append(in_turn.candidates_s())

    kinds: list[Callable[[], None]] = [rows, side_by_side, one_after_another]
    for turn in range(chosen.rounds):
        for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
            kind()
    figures: dict[str, Any] = {name: median(values) for name, values in times.items()}
    bound_s = figures["prefill_s"] + figures["decode_s"]
    return figures | {"prompt_tokens_computed": computed, "share_of_prefill_and_decode": figures["beside_s"] / bound_s}


def main() -> None:
    """Measure each model, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["small", "135m"])
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of the prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="where the models are kept")
    chosen = parser.parse_args()
    facts = environment(1)
    print_environment(facts)
    found = {}
    for name in chosen.models:
        found[name] = figures = measure(model_file(name, "q8_0", chosen.folder), chosen)
        print(
            f"{name}: prompt {figures['prefill_s']:.2f} s, eight rows {figures['decode_s']:.2f} s; "
            f"eight candidates side by side {figures['beside_s']:.2f} s "
            f"({figures['share_of_prefill_and_decode']:.2f} of the two), in turn {figures['in_turn_s']:.2f} s; "
            f"prompt tokens computed: {figures['prompt_tokens_computed']}"
        )
    write_results("candidates", facts, found)


if __name__ == "__main__":
    main()
