"""E1: 0.5 to 10 times the load in an open loop: useful work, waste and light tenants, beside the baselines."""

from bench.sim.arrivals import plan
from bench.sim.ledger import Window, summary
from bench.sim.rows import Figures, Row, Task, at_least, at_most
from bench.sim.yard import WARM_UP_S, Basis, run

LOADS = (0.5, 1.0, 1.5, 2.0, 5.0, 10.0)
SYSTEMS = ("ours", "B1", "B3", "B3d", "B4", "B5")
SECONDS = 240.0
#: Two runs of the same system differ by up to this share of the capacity. A smaller fall does not count.
NOISE = 0.01


def tasks() -> list[Task]:
    """Return a task for every system at every load. The longest runs start first."""
    return [Task("E1", (name, load), one) for load in reversed(LOADS) for name in SYSTEMS]


def one(basis: Basis, name: str, load: float, seconds: float = SECONDS) -> Figures:
    """Run one system at one load."""
    done = run(basis, name, plan(basis.crowd(load), seconds, basis.seed), seconds)
    return summary(done, Window(WARM_UP_S * 1_000, seconds * 1_000), basis.capacity_wtps)


def rows(got: dict[tuple[str, float], Figures]) -> list[Row]:
    """Return the rows for E1's targets. Each target applies at every load from 1.5x."""
    over = [load for load in LOADS if load >= 1.5]

    def line(figure: str, name: str) -> str:
        return " ".join(f"{got[name, load][figure]:.3f}" for load in over)

    others = [name for name in SYSTEMS if name != "ours"]
    useful = [got["ours", load]["useful"] for load in over]
    falls = max(a - b for i, a in enumerate(useful) for b in useful[i + 1 :])
    return [
        Row(
            "E1",
            "useful work / capacity at 1.5 2 5 10x",
            ">= .90 (.93)",
            line("useful", "ours"),
            all(at_least(value, 0.90) for value in useful),
            {name: line("useful", name) for name in others},
        ),
        Row(
            "E1",
            "largest fall of useful work as load grows",
            f"<= {NOISE} (noise)",
            f"{max(0.0, falls):.3f}",
            falls <= NOISE,
        ),
        Row(
            "E1",
            "waste at 1.5 2 5 10x",
            "<= .05 (.02)",
            line("waste", "ours"),
            all(at_most(got["ours", load]["waste"], 0.05) for load in over),
            {name: line("waste", name) for name in others},
        ),
        Row(
            "E1",
            "light tenants' success at 1.5 2 5 10x",
            ">= .95 (.995)",
            line("light_success", "ours"),
            all(at_least(got["ours", load]["light_success"], 0.95) for load in over),
            {name: line("light_success", name) for name in others},
        ),
    ]
