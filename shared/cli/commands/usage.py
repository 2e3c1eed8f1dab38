"""`penstock usage`: add up the jobs that ended and their tokens, by tenant, API key, model or day."""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Annotated

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir
from shared.cli.reached_cells import CellName, ReachedCells, reading_cells
from shared.errors import ConfigError
from shared.jobs.pool_terms import format_amount

#: Without --from, the command begins this many days before the last day.
_DEFAULT_DAYS_BEFORE = 29
_BUDGET_COLUMNS = (
    "kind",
    "name",
    "period",
    "max_tokens",
    "counted_tokens",
    "reserved_tokens",
    "left_tokens",
    "resets_at",
)


def usage(
    *,
    by: Annotated[
        str, typer.Option(metavar="LIST", help="What to list: tenant, key, model, day and cell, comma-separated.")
    ] = "tenant",
    first: Annotated[
        str | None, typer.Option("--from", metavar="DATE", help="The first day, UTC; by default 29 days before --to.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="The last day; by default today.")] = None,
    budgets: Annotated[bool, typer.Option("--budgets", help="List the budgets instead, and what is used now.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    cell: CellName = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Add up the jobs that ended and the tokens that clients were told. Days (UTC) are kept for 400 days."""
    if as_csv and json:
        raise ConfigError("choose either --csv or --json")
    with reading_cells(state_dir, cell) as cells:
        if budgets:
            _print_budgets(cells, as_csv=as_csv, json=json)
        else:
            _print_usage(cells, by, (first, last), as_csv=as_csv, json=json)


def _print_usage(
    cells: ReachedCells, by: str, given: tuple[str | None, str | None], *, as_csv: bool, json: bool
) -> None:
    """Add up the usage of all cells between two days, which may be given, and print the sums."""
    from shared.accounts.usage import (
        DIMENSIONS,
        Amounts,
        UsageRecords,
        days_between,
        parse_day,
        parse_dimensions,
        sum_by,
        write_csv,
    )

    first, last = given
    dimensions = parse_dimensions("by", by, (*DIMENSIONS, "cell"))
    records = {name: UsageRecords(client) for name, client in cells.clients.items()}
    last_day = parse_day("to", last) if last else max(one.today() for one in records.values())
    first_day = parse_day("from", first) if first else _default_first(last_day)
    days = days_between(first_day, last_day)
    sums = sum_by(dimensions, (replace(row, cell=name) for name, one in records.items() for row in one.read(days)))
    rows = [dict(zip(dimensions, group, strict=True)) | amounts.as_dict() for group, amounts in sums.items()]
    if json:
        output.write_json({"from": str(first_day), "to": str(last_day), "rows": rows})
    elif as_csv:
        write_csv(sys.stdout, dimensions, rows)
    else:
        columns = (*dimensions, *Amounts().as_dict())
        names = [name.removesuffix("_tokens").removesuffix("_micro") for name in columns]
        output.write_table(names, (_cells(row) for row in rows))


def _default_first(last_day: date) -> date:
    """Return the first day of a report that ends with `last_day`: 29 days earlier, if the calendar has that day."""
    days_before = min(_DEFAULT_DAYS_BEFORE, (last_day - date.min).days)
    return last_day - timedelta(days=days_before)


def _print_budgets(cells: ReachedCells, *, as_csv: bool, json: bool) -> None:
    from shared.accounts.budgets import Budgets, join_budgets

    found = join_budgets(Budgets(client).read_all() for client in cells.clients.values())
    rows = [budget.as_dict() for budget in found]
    if json:
        output.write_json({"budgets": rows})
    elif as_csv:
        _write_csv(_BUDGET_COLUMNS, rows)
    else:
        if not rows:
            output.write_note("no tenant and no group has a budget; see `penstock tenants set --tokens-per-day`")
        names = [name.removesuffix("_tokens") for name in _BUDGET_COLUMNS]
        output.write_table(names, ([row[name] for name in _BUDGET_COLUMNS] for row in rows))


def _write_csv(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _cells(row: Mapping[str, object]) -> list[object]:
    """Return the cells of a row. On a terminal, a zero is an empty cell, and a column without cells is left out.

    In a pipe, a cost of nothing is a dash, as in the console: most often, no model has a price.
    """
    cost = row["cost_micro"]
    amount = format_amount(cost) if isinstance(cost, int) and cost else None
    cells = list(row.values())[:-1]
    return [*(cell or None for cell in cells), amount] if sys.stdout.isatty() else [*cells, amount or "\N{EN DASH}"]
