"""Measures this worker's rates for its heartbeats: weighted tokens per second, prefill rate, time per output token.

It also measures how many tokens the tokenizer produces per byte, from which the door estimates the length of prompts.

Predictions, refusals and retry hints are computed from these rates (docs/fairness.md). The rates start with the values
that the calibration measured, and are updated when a job ends and at each heartbeat.
"""

from dataclasses import dataclass

from shared.clock import Clock
from shared.jobs.job import Usage
from workers.job_engine import JobEngine
from workers.prompt_sizes import PromptSizes
from workers.speed_by_load import SpeedByLoad

#: Weight of a new value in the moving average of weighted tokens per second. With this weight, the average adapts to a
#: change of load within about ten heartbeats.
_SMOOTHING = 1 / 8
#: The times per token are means over the tokens of about the last 20 jobs: each new job reduces the weight of all
#: earlier ones by this factor.
_KEEP = 0.95
#: The weight of the calibration in these means, in prompt tokens and in generated tokens: those of four usual jobs.
_CALIBRATED_TOKENS = (4 * 512, 4 * 128)
#: A job's time per token counts as at most this many times the mean, so that one job that was stopped does not distort
#: the mean. A real change of load is followed within some jobs all the same.
_MAX_TIMES_MEAN = 2
#: A prompt is used to measure the prefill rate only if at least this many of its tokens were computed. A
#: shorter prompt takes about one step, whatever its length, so its time does not show the rate.
_MIN_PROMPT_TOKENS = 64
#: Number of prompt tokens for each generated token, as assumed for the first estimate, before any job has run.
_INITIAL_MIX = 1.0


@dataclass(frozen=True)
class _Counters:
    """The engine's counters at a time when every slot was taken."""

    at_s: float
    slots: int
    prompt_tokens: int
    completion_tokens: int


class _TimePerToken:
    """A moving mean of the time per token, in ms.

    It weights each job by its tokens. The mean of the jobs' rates would be too high: a job of 100 tokens that takes 1 s
    and one that takes 9 s have a mean rate of 56 tokens per second, but together they compute only 20 per second.
    """

    def __init__(self, calibrated_ms: float, tokens: int) -> None:
        self._tokens = float(tokens) if calibrated_ms > 0 else 0.0
        self._ms = self._tokens * calibrated_ms

    @property
    def mean_ms(self) -> float:
        return self._ms / self._tokens if self._tokens else 0.0

    def add(self, tokens: int, took_ms: float) -> None:
        if self._tokens:
            took_ms = min(took_ms, _MAX_TIMES_MEAN * self.mean_ms * tokens)
        self._tokens, self._ms = _KEEP * self._tokens + tokens, _KEEP * self._ms + took_ms


class Throughput:
    """Keeps moving averages of the rates.

    The job loop's thread calls `record_usage`, and the leases' thread calls `rates`.
    """

    def __init__(self, engine: JobEngine, generated_weight: int, clock: Clock) -> None:
        self._engine, self._weight, self._clock = engine, generated_weight, clock
        facts = engine.facts
        prompt_token_ms = 1000 / facts.prefill_tps if facts.prefill_tps > 0 else 0.0
        self._prompt_token = _TimePerToken(prompt_token_ms, _CALIBRATED_TOKENS[0])
        self._output_token = _TimePerToken(facts.step_ms, _CALIBRATED_TOKENS[1])
        # If the slots do not share their steps, each slot computes its prompt at the full prefill rate.
        prefill_tps = facts.prefill_tps * (1 if engine.shares_steps else facts.slots)
        #: Weighted tokens per second, and how many generated tokens per second they contain.
        self._wtps = self._generated_tps = 0.0
        if prefill_tps > 0 and facts.decode_tps > 0:
            seconds = _INITIAL_MIX / prefill_tps + 1 / facts.decode_tps
            self._wtps, self._generated_tps = (_INITIAL_MIX + generated_weight) / seconds, 1 / seconds
        #: The most slots at which the rates were measured.
        self._measured_slots = 0
        #: The speed with free slots, and the engine's counters at its last measurement.
        self._by_load, self._counted = SpeedByLoad(), (0.0, 0.0, 0.0)
        #: Counters at the last heartbeat if every slot was taken then, otherwise None.
        self._last_full: _Counters | None = None
        self.sizes = PromptSizes()

    def record_usage(self, usage: Usage) -> None:
        """Update the prefill rate and the time per output token with an ended job."""
        computed = usage.read_tokens - usage.cached_tokens
        # The time of a short prompt is better than none, which is what is known of an upstream at first.
        if usage.prefill_ms and (computed >= _MIN_PROMPT_TOKENS or (computed > 0 and not self._prompt_token.mean_ms)):
            self._prompt_token.add(computed, usage.prefill_ms)
        if usage.decode_ms and usage.completion_tokens > 1:
            self._output_token.add(usage.completion_tokens - 1, usage.decode_ms)

    def rates(self, *, full: bool) -> dict[str, str | int | float]:
        """Return the rates for a heartbeat. `full` says whether every slot is taken now.

        Weighted tokens per second are measured only between two consecutive heartbeats at which every slot was taken,
        because a worker with free slots computes less than it could.
        """
        stats = self._engine.stats
        now = _Counters(self._clock.monotonic(), self._engine.slots, stats.prompt_tokens, stats.completion_tokens)
        before, self._last_full = self._last_full, now if full else None
        self._measure_load(now)
        if full and before is not None and now.at_s > before.at_s:
            seconds = now.at_s - before.at_s
            generated_tps = (now.completion_tokens - before.completion_tokens) / seconds
            wtps = (now.prompt_tokens - before.prompt_tokens) / seconds + self._weight * generated_tps
            # The first values are not smoothed, nor those with more slots than before. Both are smoothed alike, so that
            # they stay values of the same time.
            slots = min(before.slots, now.slots)
            by = 1.0 if self._wtps == 0 or slots > self._measured_slots else _SMOOTHING
            self._measured_slots = max(slots, self._measured_slots)
            self._wtps += (wtps - self._wtps) * by
            self._generated_tps += (generated_tps - self._generated_tps) * by
        prompt_token_ms = self._prompt_token.mean_ms
        wtps, generated_tps = self._wtps, self._generated_tps
        if not wtps:
            wtps = self._by_load.rate(self._engine.slots)
            all_wt = stats.prompt_tokens + self._weight * stats.completion_tokens
            generated_tps = wtps * stats.completion_tokens / max(1, all_wt)
        elif self._engine.slots > self._measured_slots and (measured := self._by_load.rate(self._measured_slots)):
            more = max(1.0, self._by_load.rate(self._engine.slots) / measured)
            wtps, generated_tps = more * wtps, more * generated_tps
        return {
            "mu_wtps": round(wtps, 1),
            "generated_tps": round(generated_tps, 2),
            "prefill_tps": round(1000 / prompt_token_ms, 1) if prompt_token_ms > 0 else 0.0,
            "tpot_ms": round(self._output_token.mean_ms, 3),
            **self.sizes.figures(),
        }

    def _measure_load(self, now: _Counters) -> None:
        """Add what was computed since the last measurement. A time without tokens is part of the next one."""
        stats = self._engine.stats
        counted = (now.prompt_tokens + self._weight * now.completion_tokens, stats.jobs_s, stats.jobs_squared_s)
        wt, jobs_s, jobs_squared_s = (after - before for after, before in zip(counted, self._counted, strict=True))
        if wt > 0:
            self._by_load.add(wt, jobs_s, jobs_squared_s)
            self._counted = counted
