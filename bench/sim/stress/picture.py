"""Draws the picture of all scenarios: useful work and light tenants' success, one mark for each system."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.sim.stress.cases import CASES
from bench.sim.stress.runs import OURS
from bench.sim.stress.table import JUDGED, SYSTEMS, Runs, middle

mpl.use("Agg")


def draw(runs: Runs, path: Path) -> Path:
    """Draw the medians of both judged figures, one mark for each system and scenario."""
    cases = [case for case in CASES if (case, OURS) in runs]
    figure = Figure(figsize=(12, 8), layout="constrained")
    for place, (name, title) in enumerate(JUDGED.items(), 1):
        axes = figure.add_subplot(2, 1, place)
        for i, system in enumerate(SYSTEMS):
            points = [(x, middle(runs, case, system, name)) for x, case in enumerate(cases) if (case, system) in runs]
            if points:
                spread = (i - len(SYSTEMS) / 2) * 0.08
                axes.plot(
                    [x + spread for x, _ in points],
                    [y for _, y in points],
                    linestyle="none",
                    marker="D" if system == OURS else "o",
                    markersize=7 if system == OURS else 5,
                    label="Penstock" if system == OURS else system,
                )
        axes.set_xticks(range(len(cases)), cases, rotation=30, ha="right", fontsize=8)
        axes.set_title(f"{title}, median of the seeds", fontsize=10)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7, ncols=len(SYSTEMS))
    figure.savefig(path, dpi=110)
    return path
