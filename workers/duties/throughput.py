"""How fast this worker really is, for its beats: weighted tokens a second, prefill rate, time per output token.

And how many tokens its tokenizer makes of a byte, by which the door estimates prompts.

The door predicts, refuses and hints with these figures (docs/fairness.md). They begin as the
calibration measured them and follow what was done since.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.clock import Clock
from shared.jobs import cost
from shared.jobs.job import Usage
from workers.engine.loop import Engine

#: Weight of a new figure in a moving average: a change of load is followed within some ten jobs or beats.
_SMOOTHING = 1 / 8
#: A shorter prompt's time is a step's, whatever its length, and says nothing of the prefill rate.
_TELLING_PROMPT = 64
#: Prompt tokens for each generated one that the first estimate supposes: nothing is known yet.
_FIRST_MIX = 1.0
#: Bytes of prompts that were seen before their count is told, and after which older ones begin to be forgotten: some
#: pages of text; fewer say more of one prompt than of what this worker is asked.
_TELLING_BYTES, _MOST_BYTES = 2_000, 200_000


@dataclass(frozen=True)
class _Mark:
    """The engine's counters at a moment at which every slot was taken."""

    at_s: float
    prompt_tokens: int
    completion_tokens: int


class Throughput:
    """Moving averages. `prompted` and `ended` are called by the rounds' thread, `figures` by the leases'."""

    def __init__(self, engine: Engine, generated_weight: int, clock: Clock) -> None:
        self._engine, self._weight, self._clock = engine, generated_weight, clock
        facts, backend = engine.backend.facts, engine.backend
        self._prefill_tps, self._tpot_ms = facts.prefill_tps, facts.step_ms
        # Where slots do not share a step, each of them reads its prompt at that rate.
        prefill_tps = facts.prefill_tps * (1 if backend.lockstep else backend.slots)
        self._wtps = 0.0
        if prefill_tps > 0 and facts.decode_tps > 0:
            seconds = _FIRST_MIX / prefill_tps + 1 / facts.decode_tps
            self._wtps = (_FIRST_MIX + generated_weight) / seconds
        self._full_since: _Mark | None = None
        self._prompt_bytes, self._prompt_tokens = 0.0, 0.0

    def prompted(self, payload: Mapping[str, Any], prompt_tokens: int) -> None:
        """Learn from a tokenized prompt. What a chat template adds is not its texts', as `cost.estimate` has it."""
        texts = cost.texts(payload)
        marks = cost.TOKENS_PER_MESSAGE * len(texts) if "messages" in payload else 0
        marks += sum(len(given) for given in payload.get("input", ()) if not isinstance(given, str))
        if self._prompt_bytes > _MOST_BYTES:
            self._prompt_bytes, self._prompt_tokens = self._prompt_bytes / 2, self._prompt_tokens / 2
        self._prompt_bytes += sum(len(text.encode()) for text in texts)
        self._prompt_tokens += max(0, prompt_tokens - marks)

    def ended(self, usage: Usage) -> None:
        """Learn from a job that generated something."""
        computed = usage.prompt_tokens - usage.cached_tokens
        if usage.prefill_ms and computed >= _TELLING_PROMPT:
            self._prefill_tps = _moved(self._prefill_tps, 1000 * computed / usage.prefill_ms)
        if usage.decode_ms and usage.completion_tokens > 1:
            self._tpot_ms = _moved(self._tpot_ms, usage.decode_ms / (usage.completion_tokens - 1))

    def figures(self, *, full: bool) -> dict[str, str | int | float]:
        """The rates as a beat carries them. `full`: every slot is taken now.

        What a worker can do shows only from one full beat to the next: with slots empty it does less.
        """
        stats = self._engine.stats
        mark = _Mark(self._clock.monotonic(), stats.prompt_tokens, stats.completion_tokens)
        before, self._full_since = self._full_since, mark if full else None
        if full and before is not None and mark.at_s > before.at_s:
            done_wt = mark.prompt_tokens - before.prompt_tokens
            done_wt += self._weight * (mark.completion_tokens - before.completion_tokens)
            self._wtps = _moved(self._wtps, done_wt / (mark.at_s - before.at_s))
        seen = self._prompt_bytes
        learned = {"tokens_per_byte": round(self._prompt_tokens / seen, 4)} if seen >= _TELLING_BYTES else {}
        return {
            "mu_wtps": round(self._wtps, 1),
            "prefill_tps": round(self._prefill_tps, 1),
            "tpot_ms": round(self._tpot_ms, 3),
            **learned,
        }


def _moved(before: float, new: float) -> float:
    return before + (new - before) * _SMOOTHING if before > 0 else new
