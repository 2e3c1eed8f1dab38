"""Fairness scenarios: the named ones of E2, and random ones drawn from a seed."""

import random

from bench.sim.asks import MODEL, SimJob
from bench.sim.fairness import Scenario

_DEADLINE_MS = 3_000_000
_MAX_TOKENS = 1_024
#: The answers of the quiet tenant in E9.
QUIET_TOKENS = 10


def flood(
    tenant: str, jobs: int, *, prompt: int, answer: int, at_ms: float = 0.0, last_answer: int | None = None
) -> list[SimJob]:
    """Return `jobs` jobs that one tenant sends at the same time: equal ones, or with answers up to `last_answer`."""
    rise = 0 if last_answer is None else (last_answer - answer) / max(1, jobs - 1)
    answers = [round(answer + rise * i) for i in range(jobs)]
    return [SimJob(0, tenant, at_ms, prompt, one, max(_MAX_TOKENS, one), _DEADLINE_MS) for one in answers]


def named() -> dict[str, Scenario]:
    """Return the named scenarios: equal tenants, different lengths and weights, and a flood before another tenant."""
    return {
        "two equal tenants": Scenario(
            tuple(flood("a", 150, prompt=200, answer=100) + flood("b", 150, prompt=200, answer=100)), {}, 120.0
        ),
        "eight tenants of different lengths": Scenario(
            tuple(job for i in range(8) for job in flood(f"t{i}", 200, prompt=100 + 150 * i, answer=150 - 15 * i)),
            {},
            240.0,
            workers=2,
        ),
        "long prompts against long answers": Scenario(
            tuple(flood("reader", 400, prompt=2_000, answer=10) + flood("writer", 80, prompt=50, answer=500)), {}, 180.0
        ),
        "weights 1 2 3 4": Scenario(
            tuple(job for i in range(1, 5) for job in flood(f"w{i}", 60 * i, prompt=200, answer=100)),
            {f"w{i}": float(i) for i in range(1, 5)},
            120.0,
        ),
        "a flood, and a rival 5 s later": Scenario(
            tuple(
                flood("flood", 400, prompt=200, answer=100) + flood("rival", 120, prompt=200, answer=100, at_ms=5_000)
            ),
            {"rival": 1.0},
            90.0,
        ),
        **floods_of_long_answers(),
    }


def floods_of_long_answers() -> dict[str, Scenario]:
    """Return floods of answers of 1,000 to 1,900 tokens on 4 slots: two at once, and one before short answers.

    The short ones come when some of the long ones have ended, so that a newcomer's credit is that of long answers.
    """
    loud, rival = (flood(name, 16, prompt=50, answer=1_000, last_answer=1_900) for name in ("flood", "rival"))
    short = flood("rival", 600, prompt=20, answer=10, at_ms=80_000)
    return {
        "two floods of long answers": Scenario(tuple(loud + rival), {}, 300.0),
        "a flood of long answers, and a rival's short ones 80 s later": Scenario(
            tuple(loud + short), {"rival": 1.0}, 240.0
        ),
    }


def loud_and_quiet(slots: int, seconds: float, seed: int, *, loud: bool = True) -> Scenario:
    """Return E9: a loud tenant with long answers, and a quiet one that asks for a quarter of the slots in short jobs.

    The loud tenant has jobs for the whole time. The quiet one sends its jobs from 2 s on, at random distances of half
    to one and a half times the mean, so that it never asks for more than its share, which is half of the slots.
    """
    rng, machine = random.Random(seed), Scenario((), {}, seconds, slots=slots).machine
    tokens_per_s = 1_000 * slots / machine.takes_ms(slots, 0, 0)
    jobs = [
        SimJob(0, "loud", 0.0, 1, rng.randint(400, 1_000), _MAX_TOKENS, _DEADLINE_MS)
        for _ in range(slots + int(seconds * tokens_per_s / 400) if loud else 0)
    ]
    at_ms, mean_gap_ms = 2_000.0, 1_000 * 4 * QUIET_TOKENS / tokens_per_s
    while (at_ms := at_ms + mean_gap_ms * rng.uniform(0.5, 1.5)) < 1_000 * (seconds - 2):
        jobs.append(SimJob(0, "quiet", at_ms, 1, QUIET_TOKENS, _MAX_TOKENS, _DEADLINE_MS))
    return Scenario(tuple(jobs), {}, seconds, slots=slots)


def drawn(seed: int, pools: int = 1, *, grouped: bool = False) -> Scenario:
    """Return a random scenario: tenants that send at once, slowly or late, with any lengths, weights and fleets.

    With several pools, each tenant uses one, some or all of them. If `grouped`, tenants are in groups with weights.
    """
    rng = random.Random(seed)
    weights: dict[str, float] = {}
    jobs: list[SimJob] = []
    for i in range(rng.randint(2, 6)):
        tenant = f"t{i}"
        if rng.random() < 0.4:
            weights[tenant] = rng.choice([0.5, 1.0, 2.0, 3.0, 4.0])
        prompt_most, answer_most = rng.choice([(50, 300), (300, 50), (1_500, 20), (400, 150)])
        begin_ms, spread_ms = rng.choice([0.0, 0.0, 3_000.0, 6_000.0]), rng.choice([0.0, 0.0, 10_000.0])
        jobs += [
            SimJob(
                0,
                tenant,
                begin_ms + rng.random() * spread_ms,
                rng.randint(1, prompt_most),
                rng.randint(1, answer_most),
                _MAX_TOKENS,
                _DEADLINE_MS,
            )
            for _ in range(pools * rng.randint(3, 20))
        ]
    models = [MODEL, *(f"model{i}" for i in range(1, pools))]
    used = {tenant: rng.sample(models, rng.randint(1, pools)) for tenant in sorted({job.tenant for job in jobs})}
    for job in jobs if pools > 1 else ():
        job.model = rng.choice(used[job.tenant])
        # Not before the first heartbeats of the workers of all models.
        job.at_ms += 1.0
    groups = {tenant: rng.choice(["g", "h"]) for tenant in used if grouped and rng.random() < 0.7}
    weights |= {f"@{group}": rng.choice([0.5, 1.0, 4.0]) for group in sorted(set(groups.values()))}
    return Scenario(
        tuple(jobs), weights, 600.0, slots=rng.choice([1, 2, 4, 8]), workers=rng.choice([1, 2]), groups=groups
    )
