"""The load of a scenario: streams of jobs, each of one tenant for one model, with a share of that model's capacity."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.sim.arrivals import DEADLINES, LONGEST, MAX_TOKENS, number
from bench.sim.asks import GENERATED_WEIGHT, MODEL, SimJob
from bench.sim.shapes import CONVERSATION, Floats, Shape, burst_times

#: A light tenant's jobs have this deadline, in ms.
LIGHT_DEADLINE_MS = 10_000
#: A light tenant offers this part of an equal share of the capacity.
LIGHT_PART = 0.5
#: Number of jobs from which a stream's mean cost is computed.
_SAMPLE = 4_000


@dataclass(frozen=True)
class Stream:
    """The jobs of one tenant for one model."""

    tenant: str
    #: The offered load as a part of the model's capacity. That of light tenants is the same at every load.
    share: float
    light: bool = False
    shape: Shape = CONVERSATION
    model: str = MODEL
    group: str = ""
    deadlines: tuple[tuple[int, float], ...] = DEADLINES
    max_tokens: int = MAX_TOKENS
    #: The longest prompt and answer, in tokens.
    longest: tuple[int, int] = LONGEST

    def draw(self, rng: np.random.Generator, times_s: Sequence[float] | Floats) -> list[SimJob]:
        """Return one job for each time."""
        prompts, answers = self.shape.lengths(rng, len(times_s), longest=self.longest)
        deadlines = ((LIGHT_DEADLINE_MS, 1.0),) if self.light else self.deadlines
        kinds = rng.choice(len(deadlines), size=len(times_s), p=[share for _, share in deadlines])
        return [
            SimJob(
                0,
                self.tenant,
                1_000 * float(at_s),
                prompt,
                answer,
                self.max_tokens,
                deadlines[kind][0],
                light=self.light,
                model=self.model,
                group=self.group,
            )
            for at_s, prompt, answer, kind in zip(times_s, prompts, answers, kinds, strict=True)
        ]

    @property
    def mean_wt(self) -> float:
        """The mean cost of a job, in weighted tokens."""
        prompts, answers = self.shape.lengths(np.random.default_rng(0), _SAMPLE, longest=self.longest)
        return (sum(prompts) + GENERATED_WEIGHT * sum(answers)) / _SAMPLE


def zipf(tenants: int, light: int, *, change: Callable[[int, Stream], Stream] | None = None) -> list[Stream]:
    """Return the streams of `tenants` tenants, whose loads follow Zipf(1.1), and of `light` light ones.

    The shares of the tenants that are not light add up to 1. `change(i, stream)` may change each stream; `i` counts
    the light tenants from 0 as well.
    """
    weights = [1 / i**1.1 for i in range(1, tenants + 1)]
    heavy = [Stream(f"t{i:03d}", weight / sum(weights)) for i, weight in enumerate(weights)]
    few = [Stream(f"light{i:02d}", LIGHT_PART / (tenants + light), light=True) for i in range(light)]
    if change is None:
        return [*heavy, *few]
    return [
        *(change(i, stream) for i, stream in enumerate(heavy)),
        *(change(i, stream) for i, stream in enumerate(few)),
    ]


def loaded(streams: Sequence[Stream], load: float, loads: Mapping[str, float]) -> list[Stream]:
    """Return the streams so that, for each model, light and other tenants together offer `load` times its capacity.

    `loads` holds a further factor for some models.
    """
    made = []
    for model in dict.fromkeys(stream.model for stream in streams):
        own = [stream for stream in streams if stream.model == model]
        light = sum(stream.share for stream in own if stream.light)
        heavy = sum(stream.share for stream in own if not stream.light)
        factor = max(0.0, load * loads.get(model, 1.0) - light) / heavy
        made += [stream if stream.light else replace(stream, share=factor * stream.share) for stream in own]
    return made


def plan(
    phases: Sequence[tuple[float, float]],
    streams: Sequence[Stream],
    capacity_wtps: Mapping[str, float],
    loads: Mapping[str, float],
    seed: int,
) -> list[SimJob]:
    """Return all jobs of a run. `phases` holds (load, seconds); the capacity is that of each model.

    Each stream has its own random generator, so that light tenants send the same jobs at every load.
    """
    jobs: list[SimJob] = []
    begin_s = 0.0
    for phase, (load, seconds) in enumerate(phases):
        for i, stream in enumerate(loaded(streams, load, loads)):
            rng = np.random.default_rng([seed, phase, i])
            rate_per_s = stream.share * capacity_wtps[stream.model] / stream.mean_wt
            shape = replace(stream.shape, dispersion=()) if stream.light else stream.shape
            times_s = burst_times(rng, rate_per_s, seconds, shape)
            jobs += stream.draw(rng, begin_s + times_s)
        begin_s += seconds
    return number(jobs)


def mix(streams: Sequence[Stream], count: int, seed: int) -> list[SimJob]:
    """Return `count` jobs in the proportions of the streams, all sent at once and without deadlines."""
    rng = np.random.default_rng([seed, 99])
    rates = np.array([stream.share / stream.mean_wt for stream in streams])
    drawn = rng.multinomial(count, rates / rates.sum())
    jobs = [job for stream, n in zip(streams, drawn, strict=True) for job in stream.draw(rng, [0.0] * int(n))]
    order = rng.permutation(len(jobs))
    jobs = [jobs[i] for i in order]
    for i, job in enumerate(jobs):
        job.deadline_ms, job.number = 10_000_000, i
    return jobs
