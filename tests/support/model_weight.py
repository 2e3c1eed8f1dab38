"""The weight of a generated token in the reference model: it follows the fits that a pool's workers report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

USUAL_MILLI = 4_000
#: The names of a worker's rates in its heartbeats, in the order of `ModelWorker.rates`.
RATES = ("mu_wtps", "prefill_tps", "tpot_ms", "generated_tps", "fit_generated_weight")
WorkerRates = tuple[int, int, int, int, int]


@dataclass
class GeneratedWeight:
    """The weight of a generated token in one pool, in thousandths of a prompt token."""

    milli: int | None = None
    #: Since when the workers' fits have been too large (1) or too small (-1), and which of both.
    off: tuple[int, int] | None = None

    @property
    def in_force(self) -> int:
        return USUAL_MILLI if self.milli is None else self.milli

    def follow(self, of_workers: Sequence[WorkerRates], now_ms: int, *, is_new: bool) -> None:
        """Move towards the mean fit once it has been off for 10 s, by a quarter at most; at once in a new pool."""
        fitted = [(mu, 1_000 * fit) for mu, _, _, _, fit in of_workers if mu and fit]
        weight = self.in_force
        fit = sum(mu * fit for mu, fit in fitted) / sum(mu for mu, _ in fitted) if fitted else weight
        if weight / 1.25 <= fit <= weight * 1.25:
            self.off = None
            return
        side = 1 if fit > weight else -1
        if self.milli is None and is_new:
            self.milli = math.floor(fit + 0.5)
        elif self.off is None or self.off[1] != side:
            self.off = now_ms, side
        elif now_ms - self.off[0] >= 10_000:
            self.milli = math.floor(max(weight / 1.25, min(weight * 1.25, fit)) + 0.5)
            self.off = now_ms, side

    def mu_wtps(self, of_workers: Sequence[WorkerRates]) -> float:
        """Return the sum of the workers' rates in weighted tokens a second, with this weight of a generated token."""
        mu_milli = sum(1_000 * mu for mu, *_ in of_workers)
        generated_milli = sum(1_000 * generated for *_, generated, _ in of_workers)
        return (mu_milli + (self.in_force - USUAL_MILLI) / 1_000 * generated_milli) / 1_000
