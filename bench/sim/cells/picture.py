"""Draws the picture of many cells: load by cell, and answers in time while something is lost or a tenant grows."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.sim.cells.cases import ACTS_MS, BACK_MS, GROWS_MS, LOST_MS
from bench.sim.cells.figures import Figures

mpl.use("Agg")

_STEP_S = 5


def draw(got: Mapping[str, Figures], path: Path) -> Path:
    """Draw the scenarios that were run."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    for place, plot in enumerate((_by_cell, _cell_lost, _region_lost, _growth), 1):
        axes = figure.add_subplot(2, 2, place)
        plot(axes, got)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    return path


def _by_cell(axes: Axes, got: Mapping[str, Figures]) -> None:
    for i, name in enumerate(("even-1", "zipf-1", "zipf-2-any", "zipf-1-workers")):
        for figure, style, words in (("offered", ":", "offered first"), ("load", "-", "done")):
            # Spilling changes what a cell does, and not what is offered to it first.
            if name in got and (name, figure) != ("zipf-2-any", "offered"):
                values = sorted(got[name][figure].values(), reverse=True)
                axes.plot(values, style, color=f"C{i}", marker=".", lw=1, label=f"{name}: {words}")
    axes.set_xlabel("cells, from the hottest")
    axes.set_title("work of each cell, by the capacity of its workers", fontsize=10)


def _cell_lost(axes: Axes, got: Mapping[str, Figures]) -> None:
    _in_time(axes, got, "loss", {"in_time_by_5s": "its tenants"}, ("cell-lost-1", "cell-lost-2"))
    axes.axvspan(LOST_MS / 1_000, BACK_MS / 1_000, color="black", alpha=0.07)
    axes.set_title("answered in time, a cell is lost", fontsize=10)


def _region_lost(axes: Axes, got: Mapping[str, Figures]) -> None:
    lines = {"in_time_by_5s": "its tenants", "others_in_time_by_5s": "others"}
    _in_time(axes, got, "loss", lines, ("region-lost-2", "region-cells-lost-2"))
    axes.axvspan(LOST_MS / 1_000, BACK_MS / 1_000, color="black", alpha=0.07)
    axes.set_title("answered in time, a region of 4 is lost", fontsize=10)


def _growth(axes: Axes, got: Mapping[str, Figures]) -> None:
    lines = {"own_in_time_by_5s": "it", "beside_in_time_by_5s": "tenants beside it"}
    _in_time(axes, got, "growth", lines, ("grows-1", "grows-spread-any", "grows-move"))
    for moment_ms, words in ((GROWS_MS, "grows"), (ACTS_MS, "operator acts")):
        axes.axvline(moment_ms / 1_000, color="black", lw=0.8, ls=":")
        axes.text(moment_ms / 1_000, 0.02, words, fontsize=8, rotation=90)
    axes.set_title("answered in time, a tenant grows a hundredfold", fontsize=10)


def _in_time(
    axes: Axes, got: Mapping[str, Figures], part: str, lines: Mapping[str, str], names: tuple[str, ...]
) -> None:
    styles: dict[str, str] = dict(zip(lines, ("-", "--"), strict=False))
    for i, name in enumerate(names):
        for line, words in lines.items() if name in got else ():
            values = got[name][part][line]
            points = [(_STEP_S * (k + 0.5), value) for k, value in enumerate(values) if value is not None]
            axes.plot(*zip(*points, strict=True), styles[line], color=f"C{i}", lw=1.2, label=f"{name}: {words}")
    axes.set_ylim(-0.02, 1.05)
    axes.set_xlabel("s, when the requests were sent")
