"""Measure what a pause costs, by the way in which the computed tokens survive it: kept, copied or computed again.

Run it with `python -m bench.pauses`. The engine is stepped without a store. In each round, a job with a prompt that
nothing has computed before is paused after some tokens, another job takes its place, and the first one resumes. The
figures are how many ms later than on an idle engine the other job has its first token, how many ms more than a usual
step the next token of the paused job takes, and the tokens computed again.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.common import environment, print_environment, write_results
from bench.engine_models import model_file
from shared.clock import RealClock
from shared.jobs.job import ClaimRef
from shared.settings.settings import load
from workers.engine.backend import Prepared
from workers.engine.events import Ended, Event, JobSpec, Text
from workers.engine.factory import make_engine
from workers.engine.loop import Engine
from workers.engine.sampling import Sampling
from workers.engine.stats import PauseWay

_NEVER_S = 1e12
#: Tokens of the first job's answer before the pause, and of the whole answer.
_BEFORE, _ANSWER = 16, 64
#: Tokens of the other job's prompt.
_OTHER_PROMPT = 16


class Paused:
    """An engine with two slots that share their cells, and a way in which the tokens of a paused job survive there."""

    def __init__(self, path: Path, way: PauseWay, prompt_tokens: int) -> None:
        self._prompt_tokens, self._round, self._seen = prompt_tokens, 0, dict[ClaimRef, int]()
        self._context = -(-(prompt_tokens + _ANSWER + 1) // 256) * 256
        paused_bytes = 1 << 30 if way is PauseWay.COPIED else 0
        # Fewer cells than both slots could use: the slots share them, and the other job can need those of the first.
        cells = self._context + self._context // 2
        settings = load(
            {}, None, device="cpu", max_batch_size=2, n_ctx=self._context, kv_cells=cells, paused_bytes=paused_bytes
        )
        self._other_answer = _BEFORE if way is PauseWay.KEPT else self._context - _OTHER_PROMPT
        self.engine: Engine = make_engine(settings, self._note, model_path=path, clock=RealClock())

    def _note(self, event: Event) -> None:
        if isinstance(event, Text):
            self._seen[event.key] = event.completion_tokens
        elif isinstance(event, Ended):
            self._seen[event.key] = 1 << 30

    def _submit(self, key: ClaimRef, prompt_tokens: int, answer_tokens: int) -> None:
        spec = JobSpec(key, "blue", {}, answer_tokens, _NEVER_S)
        made: Prepared = self.engine.backend.calibration_job(spec, prompt_tokens)  # type: ignore[attr-defined]
        prompt = (made.prompt + self._round) % self.engine.backend.n_vocab  # type: ignore[attr-defined]
        sampling = Sampling(seed=self._round, ignore_eos=True)
        self.engine.submit(Prepared(spec, prompt_tokens, answer_tokens, sampling, prompt))

    def _ms_until(self, key: ClaimRef, tokens: int) -> float:
        began_s = time.perf_counter()
        while self._seen.get(key, 0) < tokens:
            self.engine.step()
        return (time.perf_counter() - began_s) * 1_000

    def _other_job(self, name: str) -> float:
        """Run another job until its third token and cancel it. Return the ms until its first token."""
        self._round += 1
        key = ClaimRef(f"{name} {self._round}", "t")
        self._submit(key, _OTHER_PROMPT, self._other_answer)
        first_ms = self._ms_until(key, 1)
        self._ms_until(key, 3)
        self.engine.cancel(key)
        self._ms_until(key, 1 << 30)
        return first_ms

    def measure(self) -> dict[str, float]:
        """Pause a job once, and return the times in ms and the tokens computed again."""
        self._round += 1
        key, stats = ClaimRef(f"paused {self._round}", "t"), self.engine.stats
        idle_ms = self._other_job("idle")
        self._submit(key, self._prompt_tokens, _ANSWER)
        prefill_ms = self._ms_until(key, 1)
        step_ms = self._ms_until(key, _BEFORE) / (_BEFORE - 1)
        before, seen = stats.recomputed_tokens, self._seen[key]
        self.engine.pause(key)
        other_ms = self._other_job("other")
        self.engine.resume(key)
        next_ms = self._ms_until(key, seen + 1)
        again = stats.recomputed_tokens - before
        self._ms_until(key, 1 << 30)
        return {
            "prefill_ms": prefill_ms,
            "pause_ms": other_ms - idle_ms,
            "resume_ms": next_ms - step_ms,
            "step_ms": step_ms,
            "tokens_again": again,
        }


def main() -> None:
    """Measure each model, length and way, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["small", "135m"])
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="where the models are kept")
    parser.add_argument("--write", action="store_true", help="write the figures to bench/results")
    chosen = parser.parse_args()
    facts = environment(1)
    print_environment(facts)
    found: dict[str, Any] = {}
    for name in chosen.models:
        path = model_file(name, "q8_0", chosen.folder)
        for prompt_tokens in chosen.prompts:
            for way in PauseWay:
                paused = Paused(path, way, prompt_tokens)
                rounds = [paused.measure() for _ in range(chosen.rounds)]
                ways = {str(name): count for name, count in paused.engine.stats.ways.items() if count}
                assert ways == {str(way): chosen.rounds}, ways
                figures = {kind: median(of_round[kind] for of_round in rounds) for kind in rounds[0]}
                found[f"{name}, {prompt_tokens} tokens, {way}"] = figures
                print(f"{name}, {prompt_tokens} tokens, {way}:", {kind: round(ms, 2) for kind, ms in figures.items()})
    if chosen.write:
        write_results("pauses", facts, found)


if __name__ == "__main__":
    main()
