"""Makes the tables of the scenarios of many cells, as Markdown."""

from collections.abc import Mapping

from bench.sim.cells.cases import all_cases
from bench.sim.cells.figures import Figures


def markdown(got: Mapping[str, Figures]) -> str:
    """Return the tables of all scenarios that were run."""
    return "\n".join([*_all(got), "", *_losses(got), "", *_growths(got)])


def _all(got: Mapping[str, Figures]) -> list[str]:
    lines = _head(
        "scenario", "in time", "refused", "spilled, admitted then", "misses", "first token p50, p99 s",
        "light tenants in time", "offered: cells over capacity, max/mean", "done: max, max/mean",
        "fairness: worst/bound",
    )  # fmt: skip
    for name, case in all_cases().items():
        if name not in got:
            continue
        own = got[name]
        lines.append(
            f"| `{name}`: {case.what} | {own['in_time']:.3f} | {own['refused']:.3f} "
            f"| {own['spilled']:.3f}, {own['spilled_admitted']:.3f} | {own['misses']:.3f} "
            f"| {own['wait_p50_ms'] / 1_000:.2f}, {own['wait_p99_ms'] / 1_000:.1f} | {own['light_in_time']:.3f} "
            f"| {own['over_capacity']}, {own['offered_max_by_mean']:.2f} "
            f"| {max(own['load'].values()):.2f}, {own['load_max_by_mean']:.2f} "
            f"| {own['fairness']['worst_by_bound']:.2f} |"
        )
    return lines


def _losses(got: Mapping[str, Figures]) -> list[str]:
    lines = _head(
        "scenario", "in time while lost: its tenants, others", "its tenants before",
        "tenants that asked, served at once", "longest gap, s", "jobs in it when it was lost",
    )  # fmt: skip
    for name, own in got.items():
        if "loss" not in own:
            continue
        loss = own["loss"]
        gap = "" if loss["longest_gap_s"] is None else f"{loss['longest_gap_s']:.2f}"
        ends = ", ".join(f"{outcome} {count}" for outcome, count in loss["of_them"].items())
        lines.append(
            f"| `{name}` | {loss['while_lost']['in_time']:.3f}, {loss['others_while_lost']['in_time']:.3f} "
            f"| {loss['before']['in_time']:.3f} | {loss['tenants_asked']}, {loss['tenants_served_at_once']} | {gap} "
            f"| {ends} |"
        )
    return lines


def _growths(got: Mapping[str, Figures]) -> list[str]:
    lines = _head("scenario", "the tenant, from 80 s on: in time, refused", "the others of its first cell: in time")
    for name, own in got.items():
        if "growth" in own:
            after, beside = own["growth"]["own_after"], own["growth"]["beside_after"]
            lines.append(f"| `{name}` | {after['in_time']:.3f}, {after['refused']:.3f} | {beside['in_time']:.3f} |")
    return lines


def _head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
