"""`penstock audit`: list the changes that operators made, the newest first."""

from typing import Annotated

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, store_client
from shared.durations import format_timestamp


def audit(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of records to show.")] = 100,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """List who changed keys, tenants and jobs as an operator, and from where. With --json, one object a line."""
    from shared.accounts.admin_actions import list_actions

    actions = list_actions(store_client(state_dir), limit=limit)
    if json:
        for one in actions:
            fields = {"who": one.who, "what": one.what, "on": one.on, "from": one.origin}
            output.write_json({"event": "admin.action", "at_ms": one.at_ms} | fields, indent=None)
        return
    rows = ((format_timestamp(one.at_ms), one.who, one.what, one.on, one.origin) for one in actions)
    columns = ("at", "who", "what", "on", "from")
    output.write_table(columns, rows, unbroken=columns)
