"""Degradation in the reference model: the pressure on a pool, its tier, and the length to which an answer is cut."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model

#: The pressure above which tiers 1 and 2 begin; a tier ends below half of its own threshold.
THRESHOLDS = (0.15, 0.4)
UP_MS = 1_000
DOWN_MS = 2_000
UPDATE_MS = 100
WAIT_WINDOW_MS = 500
SHORTEST_ANSWER = 32


@dataclass
class Tiers:
    """A pool's tier. When no offer updates it, it lasts for as long as going down one tier takes or work waits."""

    tier: int = 0
    updated_ms: int = 0
    above_from_ms: int | None = None
    below_from_ms: int | None = None
    wait_from_ms: int = 0
    least_wait_ms: float = 0

    def in_force(self, now_ms: int, *, work_waits: bool) -> int:
        return self.tier if work_waits or now_ms - self.updated_ms <= DOWN_MS else 0

    def end_if_not_updated(self, now_ms: int) -> None:
        """End a tier that no offer has updated lately, at an offer that cannot update it for lack of rates."""
        if now_ms - self.updated_ms > DOWN_MS:
            self.tier, self.updated_ms, self.above_from_ms, self.below_from_ms = 0, 0, None, None

    def note_wait(self, now_ms: int, waited_ms: float) -> None:
        """Note the wait of a claimed job. The least wait in half a second counts: it proves that a queue stands."""
        if waited_ms == math.inf:
            return
        if now_ms - self.wait_from_ms >= WAIT_WINDOW_MS:
            self.wait_from_ms, self.least_wait_ms = now_ms, waited_ms
        self.least_wait_ms = min(self.least_wait_ms, waited_ms)

    def update(self, now_ms: int, waiting_share: float, max_wait_ms: int) -> int:
        """Update the tier at an offer, by the queued work or by the least wait of the last second; return it."""
        tier = self.in_force(now_ms, work_waits=waiting_share > 0)
        if now_ms - self.updated_ms < UPDATE_MS:
            return tier
        if now_ms - self.updated_ms > DOWN_MS:
            self.above_from_ms = None
        wait_is_recent = now_ms - self.wait_from_ms < 2 * WAIT_WINDOW_MS
        pressure = max(waiting_share, self.least_wait_ms / max_wait_ms if wait_is_recent else 0)
        above = tier < len(THRESHOLDS) and pressure > THRESHOLDS[tier]
        below = tier > 0 and pressure < THRESHOLDS[tier - 1] / 2
        self.above_from_ms = (self.above_from_ms or now_ms) if above else None
        self.below_from_ms = (self.below_from_ms or now_ms) if below else None
        if self.above_from_ms is not None and now_ms - self.above_from_ms >= UP_MS:
            tier, self.above_from_ms = tier + 1, now_ms
        elif self.below_from_ms is not None and now_ms - self.below_from_ms >= DOWN_MS:
            tier, self.below_from_ms = tier - 1, now_ms
        self.tier, self.updated_ms = tier, now_ms
        return tier


def tier_at_claim(model: "Model", job: ModelJob) -> int:
    """Return the tier at which a job runs: at least that of its admission; 0 if it may not be degraded."""
    pool = model.pools[job.slug]
    rated = model.full and pool.rates_at(model.now_ms) is not None
    tier_now = (
        pool.tiers.in_force(model.now_ms, work_waits=model.other_work_waits) if model.degradation and rated else 0
    )
    return 0 if job.admitted_at_tier is None else max(tier_now, job.admitted_at_tier)


def cut(model: "Model", job: ModelJob) -> None:
    """Cut an answer to the time left to its deadline, by the pool's rates.

    Rates of any age cut a job that was admitted only for a cut answer.
    """
    pool, tier = model.pools[job.slug], tier_at_claim(model, job)
    rates = pool.rates if job.admitted_at_tier else model.full and pool.rates_at(model.now_ms)
    job.cut_tokens = job.cut_tier = 0
    if tier == 0 or not rates:
        return
    left_ms = model.margin * (job.deadline_ms - model.now_ms) - 1_000 * job.prompt_tokens / rates.prefill_tps
    fitting = max(SHORTEST_ANSWER, math.floor(left_ms / rates.tpot_ms))
    if fitting < job.max_tokens:
        job.cut_tokens, job.cut_tier = fitting, tier
