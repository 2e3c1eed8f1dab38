"""A burst between two calm times: its plan of requests, and the figures of a live system's answers."""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.sim.arrivals import Crowd, phases
from bench.sim.asks import SimJob
from bench.sim.ledger import Window, judged, percentile, success
from bench.sim.simulation import Run

#: Load before and after the burst, as a multiple of 1x.
CALM = 0.5
TENANTS, QUIET_TENANTS = 10, 2
#: Words that the demo model knows.
_WORDS = (
    "a the little girl boy dog cat bird Tom Lily Pip went to park forest house and saw big red ball one day she he was "
    "happy sad mom said yes no play with friend tree"
)


@dataclass(frozen=True)
class Times:
    """The lengths of the three parts of a run, in s."""

    before: float = 10.0
    burst: float = 30.0
    after: float = 60.0

    @property
    def seconds(self) -> float:
        """The length of the whole run."""
        return self.before + self.burst + self.after

    @property
    def in_burst(self) -> Window:
        """The time of the burst."""
        return Window(self.before * 1_000, (self.before + self.burst) * 1_000)

    @property
    def afterwards(self) -> Window:
        """The time from the end of the burst to the end of the run."""
        return Window((self.before + self.burst) * 1_000, self.seconds * 1_000)


@dataclass(frozen=True)
class Clients:
    """The state that all clients share. Lengths are in tokens."""

    patience_ms: int = 3_000
    #: Prompts are this many times shorter than in the trace, so that they fit the demo model.
    prompts_by: float = 10.0
    #: No client knows how long its answer will be: the model itself ends it, mostly earlier.
    max_tokens: int = 512
    #: Whether the requests name the patience as their deadline.
    name_deadline: bool = True

    def impatient(self, jobs: list[SimJob]) -> list[SimJob]:
        """Give all jobs these lengths and this patience, in place, and return the jobs."""
        for job in jobs:
            job.prompt = max(1, round(job.prompt / self.prompts_by))
            job.max_tokens = self.max_tokens
            job.deadline_ms, job.leaves_after_ms = self.patience_ms, float(self.patience_ms)
        return jobs

    def fields(self, job: SimJob) -> dict[str, Any]:
        """Return the body of a request, the same for both systems. Prompts of different jobs begin differently.

        The C++ server ignores `deadline_ms`. Temperature 0: the same prompt gets the same answer from both systems.
        """
        rng, words = random.Random(job.number), _WORDS.split()
        prompt = " ".join(rng.choice(words) for _ in range(job.prompt))
        deadline = {"deadline_ms": job.deadline_ms} if self.name_deadline else {}
        return {"prompt": prompt, "max_tokens": job.max_tokens, "temperature": 0} | deadline


def plan_burst(load: float, one_x_per_s: float, times: Times, clients: Clients, seed: int) -> list[SimJob]:
    """Return the requests of one run: a calm time, a burst with `load` times the rate of 1x, and a calm time.

    The quiet tenants send at the same rate throughout: each offers half of an equal share of 1x among all tenants.
    The other tenants share the rest of the load by Zipf(1.1).
    """
    quiet_per_s = 0.5 * one_x_per_s / (TENANTS + QUIET_TENANTS)

    def crowd(load: float) -> Crowd:
        return Crowd(load * one_x_per_s, quiet_per_s, tenants=TENANTS, light_tenants=QUIET_TENANTS)

    parts = [(crowd(CALM), times.before), (crowd(load), times.burst), (crowd(CALM), times.after)]
    return clients.impatient(phases(parts, seed))


def in_time_per_s(run: Run, window: Window) -> float:
    """Return the answers in time per second that arrived in the window."""
    return sum(job.in_time and window.holds(job.ended_ms) for job in run.jobs) / window.seconds


def in_time_by_second(run: Run) -> list[int]:
    """Return how many answers in time arrived in each whole second of the run."""
    seconds = Counter(int(job.ended_ms // 1_000) for job in run.jobs if job.in_time and job.ended_ms is not None)
    return [seconds[second] for second in range(int(run.seconds))]


def longest_silence_s(run: Run, window: Window) -> float:
    """Return the longest time within the window, in s, in which no answer in time arrived."""
    arrived = sorted(
        job.ended_ms for job in run.jobs if job.in_time and job.ended_ms is not None and window.holds(job.ended_ms)
    )
    moments = [window.begin_ms, *arrived, window.end_ms]
    return max(later - earlier for earlier, later in pairwise(moments)) / 1_000


def fates(jobs: list[SimJob]) -> dict[str, int]:
    """Count how the jobs ended: an outcome, the reason of a refusal, or `left` if the client was not answered."""
    return dict(Counter(job.refusal or job.outcome or "left" for job in jobs).most_common())


def burst_figures(run: Run, times: Times) -> dict[str, Any]:
    """Return the figures of one run. Success is a share of the requests that were sent in that part of the run."""
    sent, later = judged(run, times.in_burst), judged(run, times.afterwards)
    quiet = [job for job in sent if job.light]
    refused_after_ms = [job.gave_up_ms - job.sent_ms for job in sent if job.gave_up_ms is not None]
    return {
        "in_time_per_s": in_time_per_s(run, times.in_burst),
        "offered_per_s": len(sent) / times.burst,
        "success": success(sent),
        "quiet_success": success(quiet),
        "quiet_requests": len(quiet),
        "longest_silence_after_s": longest_silence_s(run, times.afterwards),
        "in_time_per_s_after": in_time_per_s(run, times.afterwards),
        "quiet_success_after": success([job for job in later if job.light]),
        "refusal_p99_ms": percentile(refused_after_ms, 0.99),
        "sent_late_p99_ms": percentile([job.sent_ms - job.at_ms for job in sent], 0.99),
        "fates": fates(sent),
        "in_time_by_second": in_time_by_second(run),
    }
