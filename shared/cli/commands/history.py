"""`penstock history`: what happened at a time, by tenant and by model."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, store_client
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
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Say what happened at a time: what waited, ran, was refused and was spent.

    With --at, list the tenants and models of that minute, or the one that is named; else all points of the span.
    """
    from shared.history.report import read_report
    from shared.jobs.job_filter import InvalidFilter

    try:
        report = read_report(
            store_client(state_dir), {"at": at, "span": span, "tenant": tenant, "model": model}
        ).as_dict()
    except InvalidFilter as error:
        raise ConfigError(f"--{error}") from None
    if json:
        output.write_json(report)
        return
    moment = report["moment"]
    if at and moment is None:
        output.write_note(f"the history has nothing about {report['at']}: it begins with its first process")
        return
    if at and "tenants" in moment:
        others = {"other tenants": moment["other_tenants"]} if any(moment["other_tenants"].values()) else {}
        rows = [("tenant", name, its) for name, its in {**moment["tenants"], **others}.items()]
        rows += [("model", name, its) for name, its in moment["models"].items()]
        output.write_note(f"from {moment['from']} to {moment['to']}")
        output.write_table(("kind", "name", *_COLUMNS), [(kind, name, *_cells(its)) for kind, name, its in rows])
        return
    points = [moment | moment["total"]] if at else report["data"]
    output.write_table(("from", "to", *_COLUMNS), [(point["from"], point["to"], *_cells(point)) for point in points])


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
