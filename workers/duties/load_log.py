"""Logs one line every 10 s under load: running and waiting jobs, tokens per second, and KV cells in use."""

from collections.abc import Sequence

from shared.clock import Clock
from shared.log import get_logger
from workers.duties.claimed_jobs import ClaimedJobs
from workers.job_engine import JobEngine

log = get_logger()

#: Interval between log lines, in seconds: short enough to show changes, and long enough to keep a day's log readable.
INTERVAL_S = 10.0


class LoadLog:
    """Logs the worker's load. It logs nothing while the worker is idle."""

    name = "load_log"

    def __init__(self, engine: JobEngine, claimed_jobs: Sequence[ClaimedJobs], clock: Clock) -> None:
        """`claimed_jobs` has the jobs of each pool that the engine serves."""
        self._engine = engine
        self._claimed_jobs = claimed_jobs
        self._clock = clock
        self._previous = self._counters()

    def _counters(self) -> tuple[float, int, int, int, int]:
        stats = self._engine.stats
        now_s = self._clock.monotonic()
        return now_s, stats.steps, stats.prompt_tokens, stats.completion_tokens, stats.cached_tokens

    def one_pass(self) -> float:
        """Log one line if jobs have run since the last pass. Return the delay until the next pass in seconds."""
        now = self._counters()
        pairs = zip(now, self._previous, strict=True)
        passed_s, steps, prompts, completions, cached = (after - before for after, before in pairs)
        self._previous = now
        held = sum(map(len, self._claimed_jobs))
        if (held or steps) and passed_s > 0:
            facts, free = self._engine.facts, self._engine.free_capacity()
            running, paused = (
                min(held, self._engine.slots - free.slots),
                sum(jobs.paused for jobs in self._claimed_jobs),
            )
            log.info(
                "worker.load",
                running=running,
                paused=paused,
                waiting_inside=max(0, held - paused - running),
                prompt_tokens_per_s=round(prompts / passed_s, 1),
                tokens_per_s=round(completions / passed_s, 1),
                steps_per_s=round(steps / passed_s, 1),
                cached_share=f"{cached / max(1, cached + prompts):.0%}",
                kv_used=f"{free.kv_used(facts.cells):.0%}",
            )
        return INTERVAL_S
