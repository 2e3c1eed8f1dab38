"""E7: E1's targets with the bursts and lengths of other published traces."""

from dataclasses import replace

from bench.sim.arrivals import plan
from bench.sim.ledger import Window, summary
from bench.sim.rows import Figures, Row, Task, at_least, at_most
from bench.sim.shapes import BURSTGPT, CODE, CONVERSATION_2024
from bench.sim.yard import WARM_UP_S, Basis, closed_loop, run

SHAPES = {shape.name: shape for shape in (CONVERSATION_2024, CODE, BURSTGPT)}
LOADS = (1.5, 5.0)
SYSTEMS = ("ours", "B4", "B5")
SECONDS = 240.0


def tasks() -> list[Task]:
    """Return a task for every system and every shape, at two loads."""
    return [Task("E7", (name, shape, load), one) for load in reversed(LOADS) for shape in SHAPES for name in SYSTEMS]


def one(basis: Basis, name: str, shape: str, load: float, seconds: float = SECONDS) -> Figures:
    """Run one system with one shape. The capacity is measured for the shape; 1x is the same share of it as in E1."""
    part = basis.one_x_per_s / basis.capacity_per_s
    own = closed_loop(basis.seed, SHAPES[shape], workers=basis.workers, machine=basis.machine)
    own = replace(own, one_x_per_s=part * own.capacity_per_s, environ=basis.environ)
    done = run(own, name, plan(own.crowd(load), seconds, own.seed), seconds)
    return summary(done, Window(WARM_UP_S * 1_000, seconds * 1_000), own.capacity_wtps)


def rows(got: dict[tuple[str, str, float], Figures]) -> list[Row]:
    """Return one row per shape with E1's targets."""
    made = []
    for shape in SHAPES:

        def line(name: str, shape: str = shape) -> str:
            figures = [got[name, shape, load] for load in LOADS]
            return " / ".join(
                " ".join(f"{f[what]:.3f}" for f in figures) for what in ("useful", "waste", "light_success")
            )

        ours = [got["ours", shape, load] for load in LOADS]
        met = all(
            at_least(f["useful"], 0.90) and at_most(f["waste"], 0.05) and at_least(f["light_success"], 0.95)
            for f in ours
        )
        made.append(
            Row(
                "E7",
                f"{shape}: useful / waste / light success at 1.5 5x",
                ">= .90 / <= .05 / >= .95",
                line("ours"),
                met,
                {name: line(name) for name in SYSTEMS if name != "ours"},
            )
        )
    return made
