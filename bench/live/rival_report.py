"""Reports the comparison with a C++ server: a table of all figures, and a picture of the bursts."""

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.live.burst import Times

_COLOURS = {"penstock": "tab:blue", "rival": "tab:red"}
#: (figure, its name in the table, format)
_ROWS = (
    ("offered_per_s", "requests a second", ".1f"),
    ("in_time_per_s", "answers in time a second", ".1f"),
    ("server_core", "CPU time of the server, s per s", ".2f"),
    ("in_time_per_server_cpu_s", "answers in time per second of the server's CPU time", ".1f"),
    ("success", "success of all tenants", ".2f"),
    ("quiet_success", "success of the quiet tenants", ".2f"),
    ("longest_silence_after_s", "longest time after the burst in which nobody is answered, s", ".1f"),
    ("in_time_per_s_after", "answers in time a second after the burst", ".1f"),
    ("quiet_success_after", "success of the quiet tenants after the burst", ".2f"),
    ("refusal_p99_ms", "99th percentile of the time to a refusal, ms", ".0f"),
)


def table(figures: dict[str, Any], rival_name: str) -> str:
    """Return the figures as a Markdown table with a column for each run. A cell without a figure is empty."""
    heads = [title.replace("penstock", "Penstock").replace("rival", rival_name) for title in figures]
    lines = [["figure", *heads], ["---"] * (len(heads) + 1)]
    lines += [[name, *(_cell(run.get(key), shape) for run in figures.values())] for key, name, shape in _ROWS]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: float | None, shape: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, shape)


def draw(figures: dict[str, Any], rival_name: str, times: Times, path: Path) -> None:
    """Draw the figures of `bench.live.rival` and write the picture to `path`."""
    names = {"penstock": "Penstock", "rival": rival_name}
    loads = [title.split()[1] for title in figures if title.startswith("rival") and not title.endswith("closed")]
    widths = [*[3.0] * len(loads), 1.4]
    figure, axes = plt.subplots(1, len(loads) + 1, figsize=(12, 3.6), width_ratios=widths)
    for axis, load in zip(axes, loads, strict=False):
        for system, name in names.items():
            by_second = figures[f"{system} {load}"]["in_time_by_second"]
            axis.step(range(len(by_second)), by_second, where="post", color=_COLOURS[system], label=name, linewidth=1.2)
        axis.axvspan(times.before, times.before + times.burst, color="0.92", zorder=0)
        one_x = figures["rival closed"]["in_time_per_s"]
        axis.axhline(one_x, color="0.5", linestyle=":", linewidth=1, label=f"1x: {rival_name} in a closed loop")
        axis.set_title(f"burst of {load} for {times.burst:g} s (grey), else 0.5x", fontsize=10)
        axis.set_xlabel("seconds")
        axis.set_xlim(0, times.seconds)
        axis.grid(visible=True, alpha=0.3)
    top = max(axis.get_ylim()[1] for axis in axes[:-1])
    for axis in axes[:-1]:
        axis.set_ylim(0, top)
    axes[0].set_ylabel("answers in time, each second")
    axes[0].legend(fontsize=8, loc="upper right")
    _draw_quiet_tenants(axes[-1], figures, names, loads)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"# written to bench/results/{path.name}")


def _draw_quiet_tenants(axis: Any, figures: dict[str, Any], names: dict[str, str], loads: list[str]) -> None:
    for i, system in enumerate(names):
        shares = [figures[f"{system} {load}"]["quiet_success"] for load in loads]
        places = [place + 0.4 * i for place in range(len(loads))]
        bars = axis.bar(places, shares, width=0.38, color=_COLOURS[system])
        axis.bar_label(bars, fmt="%.2f", fontsize=8)
    axis.set_xticks([place + 0.2 for place in range(len(loads))], loads)
    axis.set_ylim(0, 1.12)
    axis.set_title("quiet tenants answered\nin time, in the burst", fontsize=10)
