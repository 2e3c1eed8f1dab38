"""`penstock history`: what happened at a time, by tenant and by model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir
from shared.cli.reached_cells import CellName, ReachedCells, reading_cells
from shared.durations import format_duration
from shared.errors import ConfigError
from shared.jobs.pool_terms import format_amount

_COLUMNS = (
    "admitted",
    "refused",
    "succeeded",
    "ended_otherwise",
    "completion_tokens",
    "first_token_p50",
    "first_token_p99",
    "waiting",
    "running",
    "paused",
    "cost",
    "reasons",
)


def history(
    *,
    at: Annotated[
        str,
        typer.Option(metavar="TIME", help="The time in question: 15m (ago), 14:05 (UTC), 2026-11-28T14:05; else now."),
    ] = "",
    span: Annotated[str, typer.Option(metavar="SPAN", help="How much to list: 10m, 1h, 6h, 1d, 7d or 30d.")] = "1h",
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Only this tenant.")] = "",
    model: Annotated[str, typer.Option(metavar="NAME", help="Only this model.")] = "",
    cell: CellName = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Say what happened at a time: what waited, ran, was refused and was spent.

    With --at, list the tenants and models of that minute, or the one that is named; else all points of the span.
    """
    from shared.history.report import read_report
    from shared.jobs.job_filter import InvalidFilter

    asked = {"at": at, "span": span, "tenant": tenant, "model": model}
    with reading_cells(state_dir, cell) as cells:
        try:
            reports = {name: read_report(client, asked).as_dict() for name, client in cells.clients.items()}
        except InvalidFilter as error:
            raise ConfigError(f"--{error}") from None
        if json and cells.named:
            output.write_json({"cells": [cells.as_dict(name, report) for name, report in reports.items()]})
        elif json:
            output.write_json(*reports.values())
        elif at:
            _print_moment(cells, reports)
        else:
            points = [(name, point) for name, report in reports.items() for point in report["data"]]
            _print_points(cells, points)


def _print_moment(cells: ReachedCells, reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the point of one time in each cell, by tenant and by model unless only one of these was asked for."""
    moments = {name: report["moment"] for name, report in reports.items() if report["moment"] is not None}
    for name, report in reports.items():
        if name not in moments:
            note = f"the history has nothing about {report['at']}: it begins with its first process"
            output.write_note(cells.note(name, note))
    if not moments:
        return
    if not all("tenants" in moment for moment in moments.values()):
        _print_points(cells, [(name, moment | moment["total"]) for name, moment in moments.items()])
        return
    rows = []
    for cell, moment in moments.items():
        others = {"other tenants": moment["other_tenants"]} if any(moment["other_tenants"].values()) else {}
        rows += [(cell, "tenant", name, its) for name, its in {**moment["tenants"], **others}.items()]
        rows += [(cell, "model", name, its) for name, its in moment["models"].items()]
        output.write_note(cells.note(cell, f"from {moment['from']} to {moment['to']}"))
    table = [cells.row(cell, (kind, name, *_cells(its))) for cell, kind, name, its in rows]
    output.write_table(cells.columns(("kind", "name", *_COLUMNS)), table)


def _print_points(cells: ReachedCells, points: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    rows = [cells.row(cell, (point["from"], point["to"], *_cells(point))) for cell, point in points]
    output.write_table(cells.columns(("from", "to", *_COLUMNS)), rows)


def _cells(its: Mapping[str, Any]) -> list[object]:
    refused: dict[str, int] = its["refused"]
    return [
        its["admitted"] or None,
        sum(refused.values()) or None,
        its["succeeded"] or None,
        its["failed"] + its["canceled"] + its["expired"] or None,
        its["completion_tokens"] or None,
        *(None if ms is None else format_duration(ms) for ms in (its["first_token_p50_ms"], its["first_token_p99_ms"])),
        *(its[name] or None for name in ("waiting", "running", "paused")),
        format_amount(its["cost_micro"]) if its["cost_micro"] else None,
        " ".join(f"{reason}:{number}" for reason, number in refused.items()) or None,
    ]
