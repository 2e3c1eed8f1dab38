"""Makes the tables of all scenarios: useful work and light tenants' success by system, and what Penstock promised."""

from collections import Counter
from statistics import median
from typing import Any

from bench.sim.rivals.catalogue import RIVALS
from bench.sim.stress.cases import CASES
from bench.sim.stress.runs import OURS

#: The figures of one run, and all runs by (case, system) and seed.
Figures = dict[str, Any]
Runs = dict[tuple[str, str], dict[int, Figures]]

#: The columns of the table. DAGOR with a hash of the tenant is only in the sweep, where it is far behind DAGOR-L.
SYSTEMS = (OURS, *(name for name in RIVALS if name != "DAGOR"))
#: Ours counts as level with the first system if it is at most this much below it.
CLOSE = 0.01
#: The judged figures and their titles.
JUDGED = {"useful": "useful work", "light": "light tenants' success"}


def markdown(runs: Runs) -> str:
    """Return the tables of the comparison as Markdown."""
    return "\n".join([*_comparison(runs), "", *_promises(runs), "", *_misses(runs)])


def behind(runs: Runs, case: str, figure: str) -> float:
    """Return by how much the median of ours is below that of the best system; 0 if ours is first."""
    best = max(middle(runs, case, system, figure) for system in SYSTEMS if (case, system) in runs)
    return max(0.0, best - middle(runs, case, OURS, figure))


def sweep_markdown(sweep: dict[str, dict[float, list[Figures]]]) -> str:
    """Return the table of the rivals' bounds. A score is the mean of useful work and light success over all runs."""
    lines = ["| design | bound | values: score (useful work, light tenants' success) |", "|---|---|---|"]
    for name, by_bound in sweep.items():
        cells = []
        best = best_bound(by_bound)
        for bound, got in by_bound.items():
            mark = "**" if bound == best else ""
            useful, light = (sum(figures[figure] for figures in got) / len(got) for figure in ("useful", "light"))
            cells.append(f"{mark}{bound:g}: {score(got):.3f}{mark} ({useful:.3f}, {light:.3f})")
        lines.append(f"| {name} | {RIVALS[name].bound_name} | {'; '.join(cells)} |")
    return "\n".join(lines)


def best_bound(by_bound: dict[float, list[Figures]]) -> float:
    """Return the bound with the highest score."""
    return max(by_bound, key=lambda bound: score(by_bound[bound]))


def score(got: list[Figures]) -> float:
    """Return the mean of useful work and of the light tenants' success over all runs."""
    mean: float = sum(figures["useful"] + figures["light"] for figures in got) / (2 * len(got))
    return mean


def _comparison(runs: Runs) -> list[str]:
    lines = [
        f"| scenario | figure | {' | '.join(SYSTEMS)} | ours first, or within {CLOSE:.2f} |",
        "|---|---|" + "---|" * (len(SYSTEMS) + 1),
    ]
    for case in (name for name in CASES if (name, OURS) in runs):
        for figure, title in JUDGED.items():
            cells = [_cell(runs, case, system, figure) for system in SYSTEMS]
            gap = behind(runs, case, figure)
            # The printed medians have three decimal places, so the gap is judged with three.
            verdict = "yes" if round(gap, 3) <= CLOSE else f"**no**: {gap:.3f} below"
            lines.append(f"| {case} | {title} | {' | '.join(cells)} | {verdict} |")
    return lines


def _promises(runs: Runs) -> list[str]:
    """Return the table of our kept promises, beside those of the rivals."""
    columns = (
        "scenario",
        "kept promises",
        "of the rivals (same order)",
        "waste",
        "ms that jobs started later than predicted: p10, p50, p90",
        "started as predicted",
        "ms that jobs ended later: p10, p50, p90",
        "ended in the 10-90 % interval",
        "told to come back",
        "first returns admitted",
    )
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for case in (name for name in CASES if (name, OURS) in runs):
        got = list(runs[case, OURS].values())
        rivals = " ".join(f"{middle(runs, case, name, 'kept'):.3f}" for name in SYSTEMS[1:] if (case, name) in runs)
        lines.append(
            f"| {case} | {_cell(runs, case, OURS, 'kept')} | {rivals} | {_cell(runs, case, OURS, 'waste', worst=max)} "
            f"| {_spread(got, 'start_late_ms')} | {_share(got, 'start_close')} | {_spread(got, 'end_late_ms')} "
            f"| {_share(got, 'end_inside')} | {_share(got, 'told')} | {_share(got, 'returns_admitted')} |"
        )
    return lines


def _misses(runs: Runs) -> list[str]:
    """Return why ours did not answer the light tenants' jobs in time, and how its promises were broken."""
    lines = ["| scenario | light tenants' jobs that ours missed | how ours broke promises |", "|---|---|---|"]
    for case in (name for name in CASES if (name, OURS) in runs):
        cells = []
        for figure in ("light_misses", "broken"):
            total: Counter[str] = Counter()
            for figures in runs[case, OURS].values():
                total.update(figures[figure])
            cells.append(", ".join(f"{why} {count}" for why, count in total.most_common(4)))
        lines.append(f"| {case} | {cells[0]} | {cells[1]} |")
    return lines


def _values(runs: Runs, case: str, system: str, figure: str) -> list[float]:
    return [figures[figure] for figures in runs[case, system].values() if figures.get(figure) is not None]


def middle(runs: Runs, case: str, system: str, figure: str) -> float:
    """Return the median of a figure over the seeds."""
    return median(_values(runs, case, system, figure))


def _cell(runs: Runs, case: str, system: str, figure: str, worst: Any = min) -> str:
    """Return median and worst of a figure, or "" if the system did not run the case."""
    if (case, system) not in runs:
        return ""
    return f"{middle(runs, case, system, figure):.3f} ({worst(_values(runs, case, system, figure)):.3f})"


def _spread(got: list[Figures], figure: str) -> str:
    """Return the medians over the seeds of the percentiles 10, 50 and 90."""
    have = [figures[figure] for figures in got if figure in figures]
    return ", ".join(f"{median(each[name] for each in have):,.0f}" for name in ("p10", "p50", "p90")) if have else ""


def _share(got: list[Figures], figure: str) -> str:
    have = [figures[figure] for figures in got if figure in figures]
    return f"{median(have):.2f}" if have else ""
