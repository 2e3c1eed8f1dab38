"""Draws the engine's figures: tokens per second by number of clients, one panel per model and prompt length."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

_LINES = {
    "a": ("llama_decode alone", "0.6", "--"),
    "b": ("worker and store", "tab:blue", "-"),
    "c": ("HTTP, store, worker", "tab:green", "-"),
    "d": ("C++ server over HTTP", "tab:red", "-"),
}


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw the figures of all models and write the picture to `path`."""
    panels: dict[tuple[str, str], list[tuple[int, dict[str, float]]]] = {}
    for model, of_model in figures.items():
        for name, cell in of_model["cells"].items():
            # A cell's name is that of its load: "64 x 16", or "64 x 16, default sampling".
            load, comma, sampling = name.partition(",")
            prompt, clients = load.split(" x ")
            panels.setdefault((model, prompt + comma + sampling), []).append((int(clients), cell["tokens_per_s"]))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False)
    for axis, ((model, prompt), points) in zip(axes[0], panels.items(), strict=True):
        for run, (label, colour, style) in _LINES.items():
            known = [(clients, tps[run]) for clients, tps in sorted(points, key=lambda point: point[0]) if run in tps]
            if known:
                axis.plot(*zip(*known, strict=True), style, color=colour, marker="o", markersize=3, label=label)
        axis.set_title(f"{model}, prompts of {prompt}", fontsize=10)
        axis.set_xlabel("clients")
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    axes[0][0].set_ylabel("generated tokens a second")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"# written to bench/results/{path.name}")
