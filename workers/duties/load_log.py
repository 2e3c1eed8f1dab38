"""A line every 10 s under load: what runs, what waits inside, tokens a second, KV cells used."""

import structlog

from shared.clock import Clock
from workers.duties.claimed_jobs import ClaimedJobs
from workers.engine.loop import Engine

log = structlog.get_logger()

#: Often enough to see a change, seldom enough to read a day's log.
INTERVAL_S = 10.0


class LoadLog:
    """Writes the line; says nothing while nothing happens."""

    name = "report"

    def __init__(self, engine: Engine, claimed_jobs: ClaimedJobs, clock: Clock) -> None:
        self._engine = engine
        self._claimed_jobs = claimed_jobs
        self._clock = clock
        self._before = self._figures()

    def _figures(self) -> tuple[float, int, int, int, int]:
        stats = self._engine.stats
        now_s = self._clock.monotonic()
        return now_s, stats.steps, stats.prompt_tokens, stats.completion_tokens, stats.cached_tokens

    def one_pass(self) -> float:
        """One line, if anything ran since the last. How long to rest then, in seconds."""
        now = self._figures()
        pairs = zip(now, self._before, strict=True)
        passed_s, steps, prompts, completions, cached = (after - before for after, before in pairs)
        self._before = now
        held = len(self._claimed_jobs)
        if (held or steps) and passed_s > 0:
            backend, room = self._engine.backend, self._engine.room()
            running = backend.slots - room.slots
            log.info(
                "worker.load",
                running=running,
                waiting_inside=max(0, held - running),
                prompt_tokens_per_s=round(prompts / passed_s, 1),
                tokens_per_s=round(completions / passed_s, 1),
                steps_per_s=round(steps / passed_s, 1),
                cached_share=f"{cached / max(1, cached + prompts):.0%}",
                kv_used=f"{1 - room.cells / backend.cells:.0%}",
            )
        return INTERVAL_S
