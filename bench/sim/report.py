"""Prints the table of results, draws the pictures, and writes one self-contained HTML page."""

import base64
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.sim.rows import Figures, Row

mpl.use("Agg")

Results = dict[str, dict[tuple[Any, ...], Figures]]

#: The colour of each system, the same in every picture.
COLOURS = {"ours": "#0b7285", "B1": "#adb5bd", "B3": "#e8590c", "B3d": "#f59f00", "B4": "#9c36b5", "B5": "#2b8a3e"}
#: The names of the systems in pictures; bench/README.md describes them under their short names.
NAMES = {
    "ours": "Penstock",
    "B1": "plain RQ",
    "B3": "FIFO, no bound",
    "B3d": "FIFO, no bound, deadlines",
    "B4": "FIFO, bounded",
    "B5": "round robin, bounded",
}
_WORDS = {True: "met", False: "NOT MET", None: "shown"}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#212529}
table{border-collapse:collapse;width:100%;font-size:13px}td,th{border:1px solid #dee2e6;padding:4px 8px;text-align:left;
vertical-align:top}.met{color:#2b8a3e;font-weight:600}.not{color:#c92a2a;font-weight:600}img{max-width:100%}
pre{background:#f8f9fa;padding:1em;overflow-x:auto}"""


def print_table(rows: list[Row]) -> None:
    """Print the rows of E1 to E8: Penstock's result, the target, whether it is met, and one line per baseline."""
    for row in rows:
        print(f"{row.experiment:3} {row.what}")
        print(f"      {'ours':6} {row.ours:44} target {row.target:32} {_WORDS[row.met]}")
        for name, value in row.baselines.items():
            print(f"      {name:6} {value}")


def draw(results: Results, path: Path) -> Path | None:
    """Draw the pictures of the experiments that ran. Return the path, or None if none of them has a picture."""
    pictures = [(axes, name) for name, plots in _PLOTS.items() if name in results for axes in plots]
    if not pictures:
        return None
    columns = 3
    lines = -(-len(pictures) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.7 * lines), layout="constrained")
    for i, (plot, name) in enumerate(pictures, 1):
        axes = figure.add_subplot(lines, columns, i)
        plot(axes, results[name])
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=110)
    return path


def results_of(stored: dict[str, dict[str, Figures]]) -> Results:
    """Return the results of experiments that have pictures, from the form in which the JSON file has them."""
    return {
        name: {_key_of(words.split()): figures for words, figures in got.items()}
        for name, got in stored.items()
        if name in _PLOTS
    }


def _key_of(words: list[str]) -> tuple[Any, ...]:
    """Return the key that these words were written from: a system, perhaps a case, perhaps a number."""
    system, *rest = words
    try:
        number: tuple[float, ...] = (float(rest[-1]),)
        rest = rest[:-1]
    except ValueError:
        number = ()
    return (system, *([" ".join(rest)] if rest else []), *number)


def write_html(path: Path, facts: dict[str, Any], by_seed: dict[str, list[Row]], pictures: dict[str, Path]) -> Path:
    """Write one self-contained page with environment, tables and pictures, and return its path."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Penstock: overload</title>",
        f"<style>{_STYLE}</style><h1>Overload, experiments E1 to E8</h1>",
        "<p>Virtual time over the real scripts; the workers are modelled. Limitations: docs/overload.md.</p>",
        "<pre>" + html.escape("\n".join(f"{name}: {value}" for name, value in facts.items())) + "</pre>",
    ]
    for seed, rows in by_seed.items():
        parts.append(f"<h2>Seed {html.escape(seed)}</h2>{_html_table(rows)}")
        if seed in pictures:
            inline = base64.b64encode(pictures[seed].read_bytes()).decode()
            parts.append(f'<p><img alt="experiments of seed {html.escape(seed)}" src="data:image/png;base64,{inline}">')
    path.write_text("\n".join(parts) + "\n")
    return path


def _html_table(rows: list[Row]) -> str:
    names = [name for name in COLOURS if name != "ours" and any(name in row.baselines for row in rows)]
    head = "".join(f"<th>{word}" for word in ("", "what", "target", "ours", "", *names))
    lines = []
    for row in rows:
        kind = {True: "met", False: "not", None: ""}[row.met]
        cells = [row.experiment, row.what, row.target, row.ours]
        lines.append(
            "<tr>"
            + "".join(f"<td>{html.escape(cell)}" for cell in cells)
            + f'<td class="{kind}">{_WORDS[row.met]}'
            + "".join(f"<td>{html.escape(row.baselines.get(name, ''))}" for name in names)
        )
    return f"<table><tr>{head}{''.join(lines)}</table>"


def _by_load(figure: str, title: str, *, goal: float | None = None) -> Callable[[Axes, dict[Any, Figures]], None]:
    """Return a function that draws one of E1's figures over the load, with one line per system."""

    def plot(axes: Axes, got: dict[Any, Figures]) -> None:
        for name in sorted({key[0] for key in got}, key=list(COLOURS).index):
            points = sorted((key[1], figures[figure]) for key, figures in got.items() if key[0] == name)
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, color=COLOURS[name], label=NAMES[name])
        if goal is not None:
            axes.axhline(goal, color="black", lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        axes.set_xlabel("load, times 1x")
        axes.set_title(f"E1: {title}", fontsize=10)
        axes.legend(fontsize=6, ncols=2, framealpha=0.6)

    return plot


def _tenants(axes: Axes, got: dict[Any, Figures]) -> None:
    """Draw every tenant's success at five times the load, from the tenant with the most jobs to the light ones."""
    for name in ("ours", "B4", "B5"):
        tenants = sorted(got[name, 5.0]["tenants"].items(), key=lambda item: (item[0].startswith("light"), item[0]))
        axes.plot(
            [figures["success"] for _, figures in tenants], marker=".", lw=0.6, color=COLOURS[name], label=NAMES[name]
        )
    axes.set_xlabel("tenants by offered load; the last five are the light ones")
    axes.set_title("E1: share answered in time, each tenant, 5x", fontsize=10)
    axes.legend(fontsize=7, framealpha=0.6)


def _refusals(axes: Axes, got: dict[Any, Figures]) -> None:
    """Draw the share of jobs that Penstock refused, by reason and load."""
    loads = sorted(key[1] for key in got if key[0] == "ours")
    reasons = sorted({reason for load in loads for reason in got["ours", load]["refusals"]})
    bottom = [0.0] * len(loads)
    for reason in reasons:
        shares = []
        for load in loads:
            figures = got["ours", load]
            total = max(1, sum(figures["refusals"].values()))
            shares.append(figures["refused"] * figures["refusals"].get(reason, 0) / total)
        axes.bar([str(load) for load in loads], shares, bottom=bottom, label=reason)
        bottom = [below + share for below, share in zip(bottom, shares, strict=True)]
    axes.set_xlabel("load, times 1x")
    axes.set_title("E1: share of jobs that Penstock refused, by reason", fontsize=10)
    axes.legend(fontsize=7, framealpha=0.6)


def _beside(axes: Axes, got: dict[Any, Figures]) -> None:
    """Draw the quiet tenant's time to the first token over its neighbour's load."""
    for name in sorted({key[0] for key in got}, key=list(COLOURS).index):
        points = sorted((key[1], figures["ttft_p99_ms"]) for key, figures in got.items() if key[0] == name)
        axes.plot(*zip(*points, strict=True), marker="o", ms=3, color=COLOURS[name], label=NAMES[name])
    axes.set_yscale("log")
    axes.set_xlabel("the neighbour's load, times its own")
    axes.set_title("E3: quiet tenant's p99 to first token, ms", fontsize=10)
    axes.legend(fontsize=7, framealpha=0.6)


def _in_time(case: str) -> Callable[[Axes, dict[Any, Figures]], None]:
    """Return a function that draws E5's answers in time over the run."""

    def plot(axes: Axes, got: dict[Any, Figures]) -> None:
        for name in sorted({key[0] for key in got}, key=list(COLOURS).index):
            raw = got[name, case]["per_s"]
            smooth = [sum(raw[max(0, i - 4) : i + 1]) / len(raw[max(0, i - 4) : i + 1]) for i in range(len(raw))]
            axes.plot(smooth, lw=1, color=COLOURS[name], label=NAMES[name])
        axes.axvspan(80, 110, color="black", alpha=0.07)
        axes.set_xlabel("s")
        axes.set_title(f"E5 {case}: answers in time a second (mean of 5 s)", fontsize=10)
        axes.legend(fontsize=7, framealpha=0.6)

    return plot


def _attempts(axes: Axes, got: dict[Any, Figures]) -> None:
    """Draw E6's attempts per job over the share of clients that obey hints."""
    for name in ("ours", "B4"):
        for kind, line in (("package", "-"), ("layered", "--")):
            points = sorted((key[2], f["attempts_per_job"]) for key, f in got.items() if key[:2] == (name, kind))
            axes.plot(
                *zip(*points, strict=True), line, marker="o", ms=3, color=COLOURS[name], label=f"{NAMES[name]}, {kind}"
            )
    axes.set_xlabel("share of clients that obey the hint")
    axes.set_title("E6: attempts a job at 2x", fontsize=10)
    axes.legend(fontsize=7, framealpha=0.6)


_PLOTS: dict[str, tuple[Callable[[Axes, dict[Any, Figures]], None], ...]] = {
    "E1": (
        _by_load("useful", "useful work / capacity", goal=0.9),
        _by_load("waste", "share of work that was wasted", goal=0.05),
        _by_load("light_success", "light tenants' success", goal=0.95),
        _by_load("success", "share of all jobs answered in time"),
        _tenants,
        _refusals,
    ),
    "E3": (_beside,),
    "E5": (_in_time("burst"), _in_time("half dark")),
    "E6": (_attempts,),
}
