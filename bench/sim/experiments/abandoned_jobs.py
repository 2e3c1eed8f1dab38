"""E4: clients leave, or their deadline passes, at random times: in the queue, during the prompt or the answer."""

import numpy as np

from bench.sim.arrivals import plan
from bench.sim.asks import SimJob
from bench.sim.ledger import Window, summary
from bench.sim.rows import Figures, Row, Task
from bench.sim.yard import WARM_UP_S, Basis, run

SHARES = (0.02, 0.05, 0.10, 0.20)
SYSTEMS = ("ours", "B3", "B4")
SECONDS = 140.0
#: Latest time at which a client leaves, in s after the send. The mean wait plus residence is about 3 s.
LATEST_S = 6.0


def tasks() -> list[Task]:
    """Return a task for every system and every share of clients that leave, at 1x."""
    return [Task("E4", (name, share), one) for share in SHARES for name in SYSTEMS]


def jobs(basis: Basis, share: float, seconds: float) -> list[SimJob]:
    """Return the plan: of the clients that leave, half cancel their job, and the deadline of the other half passes."""
    rng = np.random.default_rng([basis.seed, 4])
    made = plan(basis.crowd(1.0), seconds, basis.seed)
    for job in made:
        if rng.random() < share:
            job.leaves_after_ms = float(rng.uniform(0.05, LATEST_S)) * 1_000
            if rng.random() < 0.5:
                job.deadline_ms = max(1, int(job.leaves_after_ms))
    return made


def one(basis: Basis, name: str, share: float, seconds: float = SECONDS) -> Figures:
    """Run one system with one share of clients that leave."""
    done = run(basis, name, jobs(basis, share, seconds), seconds)
    computed = sum(job.computed_prompt + job.computed_answer for job in done.jobs)
    figures = summary(done, Window(WARM_UP_S * 1_000, seconds * 1_000), basis.capacity_wtps)
    return figures | {
        "dead_share": sum(job.dead_tokens for job in done.jobs) / max(1, computed),
        "left_while_running": len(done.departures),
        "left_in_prompt": sum(1 for left in done.departures if left.in_prompt),
        "most_steps": max((left.steps for left in done.departures), default=0),
    }


def rows(got: dict[tuple[str, float], Figures]) -> list[Row]:
    """Return the rows for the steps until a slot is free and for tokens computed after the client had left."""

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
