"""The reference of degradation: what presses a pool, which tier that makes it, and how short an answer is cut."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model

#: Above so much pressure tier 1, above so much tier 2; below half of its own mark a tier is left.
PRESSED = (0.15, 0.4)
UP_MS = 1_000
DOWN_MS = 2_000
LOOK_MS = 100
WAITS_MS = 500
SHORTEST_ANSWER = 32


@dataclass
class Tiers:
    """A pool's tier. It is over when nobody has looked at it for as long as it takes to go down."""

    tier: int = 0
    looked_ms: int = 0
    above_from_ms: int | None = None
    below_from_ms: int | None = None
    wait_from_ms: int = 0
    least_wait_ms: int = 0

    def in_force(self, now_ms: int) -> int:
        return self.tier if now_ms - self.looked_ms <= DOWN_MS else 0

    def note_wait(self, now_ms: int, waited_ms: int) -> None:
        """The least wait of any job that was claimed in half a second: the least proves a queue that stands."""
        if now_ms - self.wait_from_ms >= WAITS_MS:
            self.wait_from_ms, self.least_wait_ms = now_ms, waited_ms
        self.least_wait_ms = min(self.least_wait_ms, waited_ms)

    def look(self, now_ms: int, waiting_share: float, max_wait_ms: int) -> int:
        """Somebody asks for a place: the tier by what waits, or by the least wait of the last second."""
        tier = self.in_force(now_ms)
        if now_ms - self.looked_ms < LOOK_MS:
            return tier
        if now_ms - self.looked_ms > DOWN_MS:
            self.above_from_ms = self.below_from_ms = None
        waited = now_ms - self.wait_from_ms < 2 * WAITS_MS
        pressure = max(waiting_share, self.least_wait_ms / max_wait_ms if waited else 0)
        above = tier < len(PRESSED) and pressure > PRESSED[tier]
        below = tier > 0 and pressure < PRESSED[tier - 1] / 2
        self.above_from_ms = (self.above_from_ms or now_ms) if above else None
        self.below_from_ms = (self.below_from_ms or now_ms) if below else None
        if self.above_from_ms is not None and now_ms - self.above_from_ms >= UP_MS:
            tier, self.above_from_ms = tier + 1, now_ms
        elif self.below_from_ms is not None and now_ms - self.below_from_ms >= DOWN_MS:
            tier, self.below_from_ms = tier - 1, now_ms
        self.tier, self.looked_ms = tier, now_ms
        return tier


def tier_at_claim(model: "Model", job: ModelJob) -> int:
    """The tier that a job is run at: what it was admitted at holds; one that may not be changed is run at none."""
    pool = model.pools[job.slug]
    rated = model.full and pool.rates_at(model.now_ms) is not None
    now = pool.tiers.in_force(model.now_ms) if model.degradation and rated else 0
    return 0 if job.taken_at_tier is None else max(now, job.taken_at_tier)


def cut(model: "Model", job: ModelJob) -> None:
    """An answer may take what is left of its patience, by the pool's rates; one that was taken for its short answer is
    cut by rates of any age."""
    pool, tier = model.pools[job.slug], tier_at_claim(model, job)
    rates = pool.rates if job.taken_at_tier else model.full and pool.rates_at(model.now_ms)
    job.cut_tokens = job.cut_tier = 0
    if tier == 0 or not rates:
        return
    left_ms = model.margin * (job.deadline_ms - model.now_ms) - 1_000 * job.prompt_tokens / rates.prefill_tps
    fitting = max(SHORTEST_ANSWER, math.floor(left_ms / rates.tpot_ms))
    if fitting < job.max_tokens:
        job.cut_tokens, job.cut_tier = fitting, tier
