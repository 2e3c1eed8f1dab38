"""The pool records of the reference model: answer lengths, rates, virtual time, and the rates of a tenant."""

import math
from collections import Counter
from dataclasses import dataclass, field

from tests.support.model_lengths import Lengths, rounded
from tests.support.model_tiers import Tiers
from tests.support.model_weight import GeneratedWeight, WorkerRates

RATES_VALID_MS = 10_000


@dataclass
class Rates:
    """The rates of a pool by its workers' heartbeats; mu is in weighted tokens a second."""

    mu_wtps: float
    prefill_tps: float
    tpot_ms: float
    reported_ms: int


@dataclass
class Pool:
    """The record of one pool."""

    slots: int = 0
    #: The jobs that the pool can work off in time, as of its last heartbeat.
    places: int = 0
    mean_mwt: float | None = None
    run_ms: float | None = None
    succeeded_ms: int = 0
    #: The last heartbeat of a worker that can pause its jobs.
    can_pause_ms: int = 0
    #: The slots that had lately become free when a worker last claimed.
    freed: int = 0
    freed_ms: int = 0
    rates: Rates | None = None
    lengths: Lengths = field(default_factory=Lengths)
    tiers: Tiers = field(default_factory=Tiers)
    generated_weight: GeneratedWeight = field(default_factory=GeneratedWeight)
    #: By class of jobs: the logarithm, in thousandths, of the factor that corrects a predicted wait.
    learned: Counter[str] = field(default_factory=Counter)

    def smooth(self, name: str, value: float) -> None:
        before = getattr(self, name)
        setattr(self, name, rounded(value if before is None else before + (value - before) / 8))

    def note_success(self, now_ms: int, run_ms: int, cost_mwt: float) -> None:
        self.smooth("run_ms", run_ms)
        self.smooth("mean_mwt", cost_mwt)
        self.succeeded_ms = now_ms

    def update_rates(self, of_workers: list[WorkerRates], reported_ms: int | None) -> None:
        """Combine the rates of the live workers that report any; `reported_ms` is the time of a heartbeat, if any.

        The times per token are means weighted by the workers' weighted tokens a second, in whole µs.
        """
        reported = [rates for rates in of_workers if rates[0]]
        if reported:
            work = sum(mu for mu, *_ in reported)
            prompt_us = sum(math.floor(mu * 1e6 / prefill + 0.5) for mu, prefill, *_ in reported)
            output_us = sum(math.floor(mu * tpot * 1e3 + 0.5) for mu, _, tpot, *_ in reported)
            before_ms = self.rates.reported_ms if self.rates else 0
            self.rates = Rates(
                self.generated_weight.mu_wtps(reported),
                1e6 * work / prompt_us,
                output_us / work / 1e3,
                before_ms if reported_ms is None else reported_ms,
            )

    def update_places(self, mu_wtps: float, max_wait_ms: int, *, reported: bool) -> None:
        """Allow the slots and a quarter more than the longest wait of mean jobs; a heartbeat lowers it by an eighth."""
        if not self.slots:
            self.places = 0
        elif reported:
            queued = math.ceil(1.25 * max_wait_ms * mu_wtps / self.mean_mwt) if mu_wtps and self.mean_mwt else 0
            self.places = max(4 * self.slots, self.slots + queued, self.places * 7 // 8)

    def rates_at(self, now_ms: int) -> Rates | None:
        """Return the rates, or None if they are unknown or too old."""
        return self.rates if self.rates is not None and now_ms - self.rates.reported_ms <= RATES_VALID_MS else None


@dataclass
class Rate:
    """A tenant's bounds a minute, and the times until which the admitted requests and tokens use them up."""

    rpm: int | None = None
    tpm: int | None = None
    rpm_ms: float = 0.0
    tpm_ms: float = 0.0
