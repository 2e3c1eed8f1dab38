"""`penstock groups`: list groups of tenants, and add, change or remove one."""

from dataclasses import asdict
from typing import Annotated

import typer

from shared.cli import output
from shared.cli.policy_options import OF_GROUPS, Changes, policy_command, print_policy
from shared.cli.reach import Json, StateDir, end_with
from shared.cli.reached_cells import CellName, ListedAccount, changing_accounts, reading_cells, write_accounts
from shared.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Manage groups of tenants, which take turns as one tenant.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="1 to 64 letters, digits, `_` and `-`.")]


@app.command("ls")
def list_all(*, cell: CellName = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List the groups, with their policies and numbers of tenants."""
    from shared.accounts.groups import GroupEntry, Groups
    from shared.jobs.group_policy import GROUP_FIELDS

    def listed(one: GroupEntry) -> ListedAccount:
        policy = asdict(one.policy)
        fields = {"group": one.name, "policy": policy, "tenants": one.tenants}
        return ListedAccount((one.name, *policy.values(), one.tenants), fields)

    with reading_cells(state_dir, cell) as cells:
        lists = {name: map(listed, Groups(client).list()) for name, client in cells.clients.items()}
        write_accounts(cells, ("group", *GROUP_FIELDS, "tenants"), lists, json=json)


@app.command()
@policy_command(OF_GROUPS)
def add(
    group: Name,
    *,
    changes: Changes,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Create a group. Fails if it exists. Tenants join it with `penstock tenants set TENANT --group GROUP`."""
    from shared.accounts.groups import Groups
    from shared.jobs.group_policy import GroupPolicy

    policy = GroupPolicy(**{name: value for name, value in changes.items() if value is not None})
    with changing_accounts(state_dir) as client:
        if not Groups(client).add(group, policy):
            end_with(f"group {group!r} exists; change it with `penstock groups set`")
        print_policy("group", group, policy, json=json)


@app.command("set")
@policy_command(OF_GROUPS)
def change(
    group: Name,
    *,
    changes: Changes,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change the named fields of a group's policy and keep the others."""
    from shared.accounts.groups import Groups

    if not changes:
        raise ConfigError("nothing to set: name at least one option, such as --weight 2")
    with changing_accounts(state_dir) as client:
        print_policy("group", group, Groups(client).change(group, changes), json=json)


@app.command()
def rm(group: Name, *, state_dir: StateDir = None) -> None:
    """Remove a group that has no tenants."""
    from shared.accounts.groups import Groups

    with changing_accounts(state_dir) as client:
        if not Groups(client).remove(group):
            end_with(f"there is no group {group!r}")
        output.write_note(f"group {group!r} is removed")
