"""Plans: which tenant sends which job when. A plan is drawn from a seed before the run, the same for every system.

Fifty tenants share the offered load by Zipf(1.1). Five light tenants send at their own rate, which is the same at
every load, with deadlines of 10 s. Each light tenant offers half of an equal share among 55 tenants, so together they
offer about a twentieth of the capacity.
"""

from dataclasses import dataclass, replace

import numpy as np

from bench.sim.asks import SimJob
from bench.sim.shapes import CONVERSATION, Shape, burst_times

#: (deadline in ms, share of the jobs).
DEADLINES = ((10_000, 0.5), (30_000, 0.4), (120_000, 0.1))
#: The longest prompt and answer that the modelled model takes, in tokens.
LONGEST = (7_000, 1_024)
#: The max_tokens of every job, since no client knows how long its answer will be.
MAX_TOKENS = 1_024


@dataclass(frozen=True)
class Crowd:
    """The tenants and the load that they offer. Rates are in jobs per second."""

    #: Rate of all tenants together.
    rate_per_s: float
    #: Rate of each light tenant.
    light_rate_per_s: float = 0.0
    tenants: int = 50
    light_tenants: int = 5
    zipf: float = 1.1
    shape: Shape = CONVERSATION
    deadlines: tuple[tuple[int, float], ...] = DEADLINES
    light_deadline_ms: int = 10_000

    @property
    def heavy_rate_per_s(self) -> float:
        """The rate of all tenants that are not light."""
        return max(0.0, self.rate_per_s - self.light_tenants * self.light_rate_per_s)


def plan(crowd: Crowd, seconds: float, seed: int) -> list[SimJob]:
    """Return all jobs of a run in the order in which they are sent."""
    rng = np.random.default_rng([seed, 1])
    weights = 1 / np.arange(1, crowd.tenants + 1) ** crowd.zipf
    times = burst_times(rng, crowd.heavy_rate_per_s, seconds, crowd.shape)
    tenants = rng.choice(crowd.tenants, size=len(times), p=weights / weights.sum())
    jobs = _jobs(rng, times, [f"t{i:02d}" for i in tenants], crowd, crowd.deadlines)
    # Light tenants have their own random generator, so that they send the same jobs at every load.
    light_rng = np.random.default_rng([seed, 2])
    for i in range(crowd.light_tenants if crowd.light_rate_per_s > 0 else 0):
        times = burst_times(light_rng, crowd.light_rate_per_s, seconds, replace(crowd.shape, dispersion=()))
        deadlines = ((crowd.light_deadline_ms, 1.0),)
        jobs += _jobs(light_rng, times, [f"light{i}"] * len(times), crowd, deadlines, light=True)
    return number(jobs)


def phases(parts: list[tuple[Crowd, float]], seed: int) -> list[SimJob]:
    """Return one plan that strings several plans together, each given as (crowd, seconds)."""
    jobs: list[SimJob] = []
    begin_ms = 0.0
    for i, (crowd, seconds) in enumerate(parts):
        for job in plan(crowd, seconds, seed + 1_000 * i):
            job.at_ms += begin_ms
            jobs.append(job)
        begin_ms += seconds * 1_000
    return number(jobs)


def number(jobs: list[SimJob]) -> list[SimJob]:
    """Sort the jobs by the time at which they are sent, and number them from 0."""
    jobs.sort(key=lambda job: job.at_ms)
    for i, job in enumerate(jobs):
        job.number = i
    return jobs


def _jobs(
    rng: np.random.Generator,
    times: np.ndarray,
    tenants: list[str],
    crowd: Crowd,
    deadlines: tuple[tuple[int, float], ...],
    *,
    light: bool = False,
) -> list[SimJob]:
    prompts, answers = crowd.shape.lengths(rng, len(times), longest=LONGEST)
    kinds = rng.choice(len(deadlines), size=len(times), p=[share for _, share in deadlines])
    return [
        SimJob(0, tenant, float(at_s) * 1_000, prompt, answer, MAX_TOKENS, deadlines[kind][0], light=light)
        for at_s, tenant, prompt, answer, kind in zip(times, tenants, prompts, answers, kinds, strict=True)
    ]
