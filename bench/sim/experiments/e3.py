"""E3: one tenant that sends little beside one that sends up to 20 times as much, and whether it feels it."""

import numpy as np

from bench.sim.arrivals import LONGEST, MAX_TOKENS, number
from bench.sim.asks import Ask
from bench.sim.ledger import Window, first_token_waits, judged, percentile, success
from bench.sim.rows import Figures, Row, Task, at_least
from bench.sim.shapes import gamma_times
from bench.sim.yard import WARM_UP_S, Basis, run

TIMES = (0, 1, 5, 10, 20)
SYSTEMS = ("ours", "B3", "B4", "B5")
SECONDS = 240.0
#: What the quiet tenant offers, of the capacity: beside 20 times as much that is 3.15 times the capacity in all.
QUIET_PART = 0.15
#: Long enough that an unloaded system never misses it: what is judged is the neighbour, not the answer's length.
DEADLINE_MS = 30_000


def tasks() -> list[Task]:
    """Every system at every neighbour's load; the neighbour's 0 is the unloaded case."""
    return [Task("E3", (name, times), one) for times in reversed(TIMES) for name in SYSTEMS]


def asks(basis: Basis, times: int, seconds: float) -> list[Ask]:
    """The quiet tenant's asks are the same whatever the neighbour sends."""
    made: list[Ask] = []
    for tenant, rate in (("quiet", QUIET_PART), ("loud", QUIET_PART * times)):
        rng = np.random.default_rng([basis.seed, 7, len(tenant)])
        at_s = gamma_times(rng, rate * basis.capacity_per_s, seconds, basis.shape.gap_cv)
        prompts, answers = basis.shape.lengths(rng, len(at_s), longest=LONGEST)
        made += [
            Ask(0, tenant, float(at) * 1_000, prompt, answer, MAX_TOKENS, DEADLINE_MS, light=tenant == "quiet")
            for at, prompt, answer in zip(at_s, prompts, answers, strict=True)
        ]
    return number(made)


def one(basis: Basis, name: str, times: int, seconds: float = SECONDS) -> Figures:
    """One system beside one neighbour."""
    done = run(basis, name, asks(basis, times, seconds), seconds)
    quiet = [ask for ask in judged(done, Window(WARM_UP_S * 1_000, seconds * 1_000)) if ask.light]
    waits = first_token_waits(quiet)
    return {
        "ttft_p50_ms": percentile(waits, 0.5),
        "ttft_p99_ms": percentile(waits, 0.99),
        "success": success(quiet),
        "jobs": len(quiet),
        "residence_ms": basis.residence_ms,
    }


def rows(got: dict[tuple[str, int], Figures]) -> list[Row]:
    """Waits against the unloaded p99 plus one mean residence, and success."""
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
