"""Scenarios for fairness: the named ones of E2, and random ones drawn from a seed."""

import random

from bench.sim.asks import Ask
from bench.sim.fairness import Scenario

_DEADLINE_MS = 3_000_000
_MAX_TOKENS = 1_024


def flood(tenant: str, jobs: int, *, prompt: int, answer: int, at_ms: float = 0.0) -> list[Ask]:
    """Many equal jobs at once."""
    return [Ask(0, tenant, at_ms, prompt, answer, _MAX_TOKENS, _DEADLINE_MS) for _ in range(jobs)]


def named() -> dict[str, Scenario]:
    """Two and eight tenants, long prompts against long answers, weights 1:2:3:4, a flood before a rival."""
    return {
        "two equal tenants": Scenario(
            tuple(flood("a", 150, prompt=200, answer=100) + flood("b", 150, prompt=200, answer=100)), {}, 120.0
        ),
        "eight tenants of different lengths": Scenario(
            tuple(ask for i in range(8) for ask in flood(f"t{i}", 200, prompt=100 + 150 * i, answer=150 - 15 * i)),
            {},
            240.0,
            workers=2,
        ),
        "long prompts against long answers": Scenario(
            tuple(flood("reader", 400, prompt=2_000, answer=10) + flood("writer", 80, prompt=50, answer=500)), {}, 180.0
        ),
        "weights 1 2 3 4": Scenario(
            tuple(ask for i in range(1, 5) for ask in flood(f"w{i}", 60 * i, prompt=200, answer=100)),
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
    }


def drawn(seed: int) -> Scenario:
    """One of endlessly many: tenants that flood, trickle, come late; any lengths, weights and fleets."""
    dice = random.Random(seed)
    weights: dict[str, float] = {}
    asks: list[Ask] = []
    for i in range(dice.randint(2, 6)):
        tenant = f"t{i}"
        if dice.random() < 0.4:
            weights[tenant] = dice.choice([0.5, 1.0, 2.0, 3.0, 4.0])
        prompt_most, answer_most = dice.choice([(50, 300), (300, 50), (1_500, 20), (400, 150)])
        begin_ms, spread_ms = dice.choice([0.0, 0.0, 3_000.0, 6_000.0]), dice.choice([0.0, 0.0, 10_000.0])
        asks += [
            Ask(
                0,
                tenant,
                begin_ms + dice.random() * spread_ms,
                dice.randint(1, prompt_most),
                dice.randint(1, answer_most),
                _MAX_TOKENS,
                _DEADLINE_MS,
            )
            for _ in range(dice.randint(3, 20))
        ]
    return Scenario(tuple(asks), weights, 600.0, slots=dice.choice([1, 2, 4, 8]), workers=dice.choice([1, 2]))
