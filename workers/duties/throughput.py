"""Measures this worker's rates for its heartbeats: weighted tokens per second, prefill rate, time per output token.

It also measures how many tokens the tokenizer produces per byte, from which the door estimates the length of prompts.

Predictions, refusals and retry hints are computed from these rates (docs/fairness.md). The rates start with the values
that the calibration measured, and are updated when a job ends and at each heartbeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.clock import Clock
from shared.jobs import cost
from shared.jobs.job import Usage
from workers.engine.loop import Engine

#: Weight of a new value in a moving average. With this weight, an average adapts to a change of load within about ten
#: jobs or heartbeats.
_SMOOTHING = 1 / 8
#: A prompt is used to measure the prefill rate only if at least this many of its tokens were computed. A
#: shorter prompt takes about one step, whatever its length, so its time does not show the rate.
_MIN_PROMPT_TOKENS = 64
#: Number of prompt tokens for each generated token, as assumed for the first estimate, before any job has run.
_INITIAL_MIX = 1.0
#: Tokens per byte are reported only after this many bytes of prompts, so that no single prompt has a large effect.
_MIN_BYTES = 2_000
#: When more bytes of prompts than this were counted, the sums are halved, so that older prompts matter less and less.
_MAX_BYTES = 200_000


@dataclass(frozen=True)
class _Counters:
    """The engine's counters at a time when every slot was taken."""

    at_s: float
    prompt_tokens: int
    completion_tokens: int


class Throughput:
    """Keeps moving averages of the rates.

    The job loop's thread calls the `record_` methods, and the leases' thread calls `rates`.
    """

    def __init__(self, engine: Engine, generated_weight: int, clock: Clock) -> None:
        self._engine, self._weight, self._clock = engine, generated_weight, clock
        facts, backend = engine.backend.facts, engine.backend
        self._prefill_tps, self._tpot_ms = facts.prefill_tps, facts.step_ms
        # If the slots do not share their steps, each slot computes its prompt at the full prefill rate.
        prefill_tps = facts.prefill_tps * (1 if backend.lockstep else backend.slots)
        self._wtps = 0.0
        if prefill_tps > 0 and facts.decode_tps > 0:
            seconds = _INITIAL_MIX / prefill_tps + 1 / facts.decode_tps
            self._wtps = (_INITIAL_MIX + generated_weight) / seconds
        #: Counters at the last heartbeat if every slot was taken then, otherwise None.
        self._last_full: _Counters | None = None
        self._prompt_bytes, self._prompt_tokens = 0.0, 0.0

    def record_prompt(self, payload: Mapping[str, Any], prompt_tokens: int) -> None:
        """Update the number of tokens per byte with a tokenized prompt.

        Tokens that the chat template adds and token ids in `input` are not counted, as in `cost.estimate`.
        """
        texts = cost.request_texts(payload)
        other_tokens = cost.TOKENS_PER_MESSAGE * len(texts) if "messages" in payload else 0
        other_tokens += sum(len(given) for given in payload.get("input", ()) if not isinstance(given, str))
        if self._prompt_bytes > _MAX_BYTES:
            self._prompt_bytes, self._prompt_tokens = self._prompt_bytes / 2, self._prompt_tokens / 2
        self._prompt_bytes += sum(len(text.encode()) for text in texts)
        self._prompt_tokens += max(0, prompt_tokens - other_tokens)

    def record_usage(self, usage: Usage) -> None:
        """Update the prefill rate and the time per output token with an ended job."""
        computed = usage.prompt_tokens - usage.cached_tokens
        if usage.prefill_ms and computed >= _MIN_PROMPT_TOKENS:
            self._prefill_tps = _smoothed(self._prefill_tps, 1000 * computed / usage.prefill_ms)
        if usage.decode_ms and usage.completion_tokens > 1:
            self._tpot_ms = _smoothed(self._tpot_ms, usage.decode_ms / (usage.completion_tokens - 1))

    def rates(self, *, full: bool) -> dict[str, str | int | float]:
        """Return the rates for a heartbeat. `full` says whether every slot is taken now.

        Weighted tokens per second are measured only between two consecutive heartbeats at which every slot was taken,
        because a worker with free slots computes less than it could.
        """
        stats = self._engine.stats
        now = _Counters(self._clock.monotonic(), stats.prompt_tokens, stats.completion_tokens)
        before, self._last_full = self._last_full, now if full else None
        if full and before is not None and now.at_s > before.at_s:
            done_wt = now.prompt_tokens - before.prompt_tokens
            done_wt += self._weight * (now.completion_tokens - before.completion_tokens)
            self._wtps = _smoothed(self._wtps, done_wt / (now.at_s - before.at_s))
        tokenizer = {}
        if self._prompt_bytes >= _MIN_BYTES:
            tokenizer["tokens_per_byte"] = round(self._prompt_tokens / self._prompt_bytes, 4)
        return {
            "mu_wtps": round(self._wtps, 1),
            "prefill_tps": round(self._prefill_tps, 1),
            "tpot_ms": round(self._tpot_ms, 3),
            **tokenizer,
        }


def _smoothed(before: float, new: float) -> float:
    return before + (new - before) * _SMOOTHING if before > 0 else new
