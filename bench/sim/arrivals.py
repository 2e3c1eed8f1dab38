"""Plans: who sends what and when. Drawn from a seed before the run, so that every system gets the same.

Fifty tenants share the offered load by Zipf(1.1); five light ones send at their own rate, the same at every
load, with 10 s deadlines. The light ones together are about a twentieth of the capacity: each offers half of
what an equal share among 55 would be.
"""

from dataclasses import dataclass, replace

import numpy as np

from bench.sim.asks import Ask
from bench.sim.shapes import CONVERSATION, Shape, burst_times

#: (deadline in ms, share of the jobs).
DEADLINES = ((10_000, 0.5), (30_000, 0.4), (120_000, 0.1))
#: The longest prompt and answer that the modelled model takes, in tokens.
LONGEST = (7_000, 1_024)
#: What every client names as max_tokens: none knows how long its answer will be.
MAX_TOKENS = 1_024


@dataclass(frozen=True)
class Crowd:
    """Who offers load. Rates in jobs per second."""

    rate_per_s: float
    #: Of each light tenant.
    light_rate_per_s: float = 0.0
    tenants: int = 50
    light_tenants: int = 5
    zipf: float = 1.1
    shape: Shape = CONVERSATION
    deadlines: tuple[tuple[int, float], ...] = DEADLINES
    light_deadline_ms: int = 10_000

    @property
    def heavy_rate_per_s(self) -> float:
        """What the fifty send together."""
        return max(0.0, self.rate_per_s - self.light_tenants * self.light_rate_per_s)


def plan(crowd: Crowd, seconds: float, seed: int) -> list[Ask]:
    """All asks of a run, in order of their sends."""
    rng = np.random.default_rng([seed, 1])
    weights = 1 / np.arange(1, crowd.tenants + 1) ** crowd.zipf
    times = burst_times(rng, crowd.heavy_rate_per_s, seconds, crowd.shape)
    whose = rng.choice(crowd.tenants, size=len(times), p=weights / weights.sum())
    asks = _asks(rng, times, [f"t{i:02d}" for i in whose], crowd, crowd.deadlines)
    # Light tenants have a stream of randomness of their own: the same asks at every load.
    light_rng = np.random.default_rng([seed, 2])
    for i in range(crowd.light_tenants if crowd.light_rate_per_s > 0 else 0):
        own = burst_times(light_rng, crowd.light_rate_per_s, seconds, replace(crowd.shape, dispersion=()))
        asks += _asks(light_rng, own, [f"light{i}"] * len(own), crowd, ((crowd.light_deadline_ms, 1.0),), light=True)
    return number(asks)


def phases(parts: list[tuple[Crowd, float]], seed: int) -> list[Ask]:
    """Plans one after the other: (crowd, seconds) each."""
    asks: list[Ask] = []
    begin_ms = 0.0
    for i, (crowd, seconds) in enumerate(parts):
        for ask in plan(crowd, seconds, seed + 1_000 * i):
            ask.at_ms += begin_ms
            asks.append(ask)
        begin_ms += seconds * 1_000
    return number(asks)


def number(asks: list[Ask]) -> list[Ask]:
    """In order of their sends, numbered from 0."""
    asks.sort(key=lambda ask: ask.at_ms)
    for i, ask in enumerate(asks):
        ask.number = i
    return asks


def _asks(
    rng: np.random.Generator,
    times: np.ndarray,
    whose: list[str],
    crowd: Crowd,
    deadlines: tuple[tuple[int, float], ...],
    *,
    light: bool = False,
) -> list[Ask]:
    prompts, answers = crowd.shape.lengths(rng, len(times), longest=LONGEST)
    kinds = rng.choice(len(deadlines), size=len(times), p=[share for _, share in deadlines])
    return [
        Ask(0, tenant, float(at_s) * 1_000, prompt, answer, MAX_TOKENS, deadlines[kind][0], light=light)
        for at_s, tenant, prompt, answer, kind in zip(times, whose, prompts, answers, kinds, strict=True)
    ]
