"""`penstock admin-keys`: create, list and remove the keys of operators. A key is printed only once."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, end_with, write_new_key
from shared.cli.reached_cells import CellName, ListedAccount, changing_accounts, reading_cells, write_accounts
from shared.durations import format_timestamp, parse_duration_ms

if TYPE_CHECKING:
    from shared.accounts.admin_keys import AdminKey

app = typer.Typer(no_args_is_help=True, help="Manage the keys of operators (the admin key file works beside them).")


@app.command("ls")
def list_all(*, cell: CellName = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List the records of all admin keys. The keys themselves are not stored."""
    from shared.accounts.admin_keys import AdminKeys

    def listed(one: "AdminKey", now_ms: int) -> ListedAccount:
        expires = "expired" if one.expired(now_ms) else format_timestamp(one.expires_ms) or "never"
        row = (one.id, one.name, format_timestamp(one.created_ms), expires)
        return ListedAccount(row, _as_dict(one) | {"expired": one.expired(now_ms)})

    with reading_cells(state_dir, cell) as cells:
        found = {name: AdminKeys(client).ls() for name, client in cells.clients.items()}
        if not json and not any(records for _, records in found.values()):
            output.write_note("no admin key is stored; the key in the admin key file is not listed here")
        lists = {name: [listed(one, now_ms) for one in records] for name, (now_ms, records) in found.items()}
        write_accounts(cells, ("id", "name", "created", "expires"), lists, json=json, styles={"expired": "yellow"})


@app.command()
def add(
    *,
    name: Annotated[str, typer.Option(help="A unique name for the operator's key, which the audit log shows.")],
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long the key is valid, such as 90d. Default: for ever."),
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Create an admin key and print it on stdout. The key cannot be shown again."""
    from shared.accounts.admin_keys import AdminKeys

    expires_in_ms = None if expires is None else parse_duration_ms("expires", expires)
    with changing_accounts(state_dir) as client:
        key, new = AdminKeys(client).create(name, expires_in_ms=expires_in_ms)
        write_new_key("admin key", key, _as_dict(new), f", {new.name!r}", json=json)


@app.command()
def rm(
    selector: Annotated[
        str,
        typer.Argument(metavar="KEY", help="The key's name, or at least the first 6 digits of its id."),
    ],
    *,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Remove an admin key. Within a second, the door stops accepting it."""
    from shared.accounts.admin_keys import AdminKeys

    with changing_accounts(state_dir) as client:
        removed = AdminKeys(client).rm(selector)
        if json:
            output.write_json([_as_dict(one) for one in removed])
        if not removed:
            end_with(f"no admin key has the name {selector!r} or an id that begins with it")
        for one in removed:
            output.write_note(f"removed admin key {one.id}, {one.name!r}")


def _as_dict(one: "AdminKey") -> dict[str, Any]:
    return {"id": one.id, "name": one.name, "created_ms": one.created_ms, "expires_ms": one.expires_ms}
