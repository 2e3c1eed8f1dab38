"""E4: clients that leave or run out of time at random moments, waiting, in mid-prompt and in mid-answer."""

import numpy as np

from bench.sim.arrivals import plan
from bench.sim.asks import Ask
from bench.sim.ledger import Window, summary
from bench.sim.rows import Figures, Row, Task
from bench.sim.yard import WARM_UP_S, Basis, run

SHARES = (0.02, 0.05, 0.10, 0.20)
SYSTEMS = ("ours", "B3", "B4")
SECONDS = 140.0
#: The last moment, in s after the send, at which somebody leaves: mean wait and residence are about 3 s.
LATEST_S = 6.0


def tasks() -> list[Task]:
    """Every share of leavers at 1x."""
    return [Task("E4", (name, share), one) for share in SHARES for name in SYSTEMS]


def asks(basis: Basis, share: float, seconds: float) -> list[Ask]:
    """Of those who go, half leave and say so, half named a deadline that passes."""
    rng = np.random.default_rng([basis.seed, 4])
    made = plan(basis.crowd(1.0), seconds, basis.seed)
    for ask in made:
        if rng.random() < share:
            ask.leaves_after_ms = float(rng.uniform(0.05, LATEST_S)) * 1_000
            if rng.random() < 0.5:
                ask.deadline_ms = max(1, int(ask.leaves_after_ms))
    return made


def one(basis: Basis, name: str, share: float, seconds: float = SECONDS) -> Figures:
    """One system, one share."""
    done = run(basis, name, asks(basis, share, seconds), seconds)
    computed = sum(ask.computed_prompt + ask.computed_answer for ask in done.asks)
    figures = summary(done, Window(WARM_UP_S * 1_000, seconds * 1_000), basis.capacity_wtps)
    return figures | {
        "dead_share": sum(ask.dead_tokens for ask in done.asks) / max(1, computed),
        "left_while_running": len(done.departures),
        "left_in_prompt": sum(1 for left in done.departures if left.in_prompt),
        "most_steps": max((left.steps for left in done.departures), default=0),
    }


def rows(got: dict[tuple[str, float], Figures]) -> list[Row]:
    """Steps to a free slot, and what was computed for nobody."""

    def line(name: str) -> str:
        return " ".join(f"{got[name, share]['dead_share']:.4f}" for share in SHARES)

    ours = [got["ours", share] for share in SHARES]
    return [
        Row(
            "E4",
            "tokens computed after the client had gone, 2 5 10 20 % leaving",
            "<= .01",
            line("ours"),
            all(figures["dead_share"] <= 0.01 for figures in ours),
            {name: line(name) for name in ("B3", "B4")},
        ),
        Row(
            "E4",
            "most steps from the engine's knowing to a free slot",
            "<= 2",
            f"{max(figures['most_steps'] for figures in ours)} of {sum(f['left_while_running'] for f in ours)} "
            f"({sum(f['left_in_prompt'] for f in ours)} in mid-prompt)",
            all(figures["most_steps"] <= 2 for figures in ours),
        ),
    ]
