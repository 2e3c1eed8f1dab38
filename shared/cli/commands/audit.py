"""`penstock audit`: list the changes that operators made, the newest first."""

from typing import Annotated

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir
from shared.cli.reached_cells import CellName, reading_cells
from shared.durations import format_timestamp


def audit(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of records to show.")] = 100,
    cell: CellName = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """List who changed keys, tenants and jobs as an operator, and from where. With --json, one object a line."""
    from shared.accounts.admin_actions import list_actions
    from shared.cells.actions import merge_actions

    with reading_cells(state_dir, cell) as cells:
        lists = {name: list_actions(client, limit=limit) for name, client in cells.clients.items()}
        merged = merge_actions(lists, limit=limit)
        if json:
            for one, names in merged:
                fields = {"who": one.who, "what": one.what, "on": one.on, "from": one.origin}
                of_cells = {"cells": names} if cells.named else {}
                output.write_json({"event": "admin.action", "at_ms": one.at_ms} | fields | of_cells, indent=None)
            return
        columns = ["at", "who", "what", "on", "from"]
        rows = [[format_timestamp(one.at_ms), one.who, one.what, one.on, one.origin] for one, _ in merged]
        if cells.named:
            columns.append("cells")
            rows = [[*row, cells.names(names)] for row, (_, names) in zip(rows, merged, strict=True)]
        output.write_table(columns, rows, unbroken=columns)
