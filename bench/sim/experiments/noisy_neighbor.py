"""E3: the effect on a quiet tenant of a neighbour that sends up to 20 times as much."""

import numpy as np

from bench.sim.arrivals import LONGEST, MAX_TOKENS, number
from bench.sim.asks import SimJob
from bench.sim.ledger import Window, first_token_waits, judged, percentile, success
from bench.sim.rows import Figures, Row, Task, at_least
from bench.sim.shapes import gamma_times
from bench.sim.yard import WARM_UP_S, Basis, run

TIMES = (0, 1, 5, 10, 20)
SYSTEMS = ("ours", "B3", "B4", "B5")
SECONDS = 240.0
#: The quiet tenant's load as a share of the capacity. With a neighbour at 20 times as much, the total is 3.15.
QUIET_PART = 0.15
#: Long enough that an unloaded system always meets it, so that misses are due to the neighbour.
DEADLINE_MS = 30_000


def tasks() -> list[Task]:
    """Return a task for every system at every load of the neighbour. The neighbour's load 0 is the unloaded case."""
    return [Task("E3", (name, times), one) for times in reversed(TIMES) for name in SYSTEMS]


def jobs(basis: Basis, times: int, seconds: float) -> list[SimJob]:
    """Return the plan. The quiet tenant's jobs do not depend on what the neighbour sends."""
    made: list[SimJob] = []
    for tenant, rate in (("quiet", QUIET_PART), ("loud", QUIET_PART * times)):
        rng = np.random.default_rng([basis.seed, 7, len(tenant)])
        at_s = gamma_times(rng, rate * basis.capacity_per_s, seconds, basis.shape.gap_cv)
        prompts, answers = basis.shape.lengths(rng, len(at_s), longest=LONGEST)
        made += [
            SimJob(0, tenant, float(at) * 1_000, prompt, answer, MAX_TOKENS, DEADLINE_MS, light=tenant == "quiet")
            for at, prompt, answer in zip(at_s, prompts, answers, strict=True)
        ]
    return number(made)


def one(basis: Basis, name: str, times: int, seconds: float = SECONDS) -> Figures:
    """Run one system with one load of the neighbour."""
    done = run(basis, name, jobs(basis, times, seconds), seconds)
    quiet = [job for job in judged(done, Window(WARM_UP_S * 1_000, seconds * 1_000)) if job.light]
    waits = first_token_waits(quiet)
    return {
        "ttft_p50_ms": percentile(waits, 0.5),
        "ttft_p99_ms": percentile(waits, 0.99),
        "success": success(quiet),
        "jobs": len(quiet),
        "residence_ms": basis.residence_ms,
    }


def rows(got: dict[tuple[str, int], Figures]) -> list[Row]:
    """Return the rows for success and for the waits, whose target is the unloaded p99 plus one mean residence."""
    beside = [times for times in TIMES if times]

    def line(figure: str, name: str, form: str) -> str:
        return " ".join(format(got[name, times][figure], form) for times in beside)

    others = [name for name in SYSTEMS if name != "ours"]
    unloaded = got["ours", 0]["ttft_p99_ms"]
    most = unloaded + got["ours", 0]["residence_ms"]
    waits = [got["ours", times]["ttft_p99_ms"] for times in beside]
    return [
        Row(
            "E3",
            "quiet tenant's p99 to first token, ms, beside 1 5 10 20 times its load",
            f"<= {most:.0f} (goal {2 * unloaded:.0f}); alone {unloaded:.0f}",
            line("ttft_p99_ms", "ours", ".0f"),
            all(wait <= most for wait in waits),
            {name: line("ttft_p99_ms", name, ".0f") for name in others},
        ),
        Row(
            "E3",
            "quiet tenant's success",
            ">= .995",
            line("success", "ours", ".3f"),
            all(at_least(got["ours", times]["success"], 0.995) for times in beside),
            {name: line("success", name, ".3f") for name in others},
        ),
    ]
