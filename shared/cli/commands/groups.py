"""`penstock groups`: list groups of tenants, and add, change or remove one."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.commands.tenants import (
    AnswerWeight,
    MaxWaiting,
    MaxWaitingTokens,
    PromptWeight,
    TokensPerDay,
    TokensPerMonth,
    Weight,
    budget_changes,
    parse_number,
)
from shared.cli.reach import FAULT, Json, StateDir, store_client, writable_store_client
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.jobs.group_policy import GroupPolicy
    from shared.jobs.tenant_policy import Value

app = typer.Typer(no_args_is_help=True, help="Manage groups of tenants, which take turns as one tenant.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="1 to 64 letters, digits, `_` and `-`.")]


@app.command("ls")
def list_all(*, state_dir: StateDir = None, json: Json = False) -> None:
    """List the groups, with their policies and numbers of tenants."""
    from shared.accounts.groups import Groups
    from shared.jobs.group_policy import GROUP_FIELDS

    entries = Groups(store_client(state_dir)).list()
    if json:
        output.write_json([{"group": e.name, "policy": asdict(e.policy), "tenants": e.tenants} for e in entries])
        return
    rows = ((e.name, *asdict(e.policy).values(), e.tenants) for e in entries)
    output.write_table(("group", *GROUP_FIELDS, "tenants"), rows)


@app.command()
def add(
    group: Name,
    *,
    weight: Weight = None,
    max_waiting: MaxWaiting = None,
    max_waiting_tokens: MaxWaitingTokens = None,
    tokens_per_day: TokensPerDay = None,
    tokens_per_month: TokensPerMonth = None,
    prompt_weight: PromptWeight = None,
    answer_weight: AnswerWeight = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Create a group. Fails if it exists. Tenants join it with `penstock tenants set TENANT --group GROUP`."""
    from shared.accounts.groups import Groups
    from shared.jobs.group_policy import GroupPolicy

    changes = _changes(weight, max_waiting, max_waiting_tokens)
    changes |= budget_changes(tokens_per_day, tokens_per_month, prompt_weight, answer_weight)
    policy = GroupPolicy(**{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]  # __post_init__ checks the types
    groups = Groups(writable_store_client(state_dir))
    if not groups.add(group, policy):
        output.write_note(f"group {group!r} exists; change it with `penstock groups set`")
        raise typer.Exit(FAULT)
    _print_policy(group, policy, json=json)


@app.command("set")
def change(
    group: Name,
    *,
    weight: Weight = None,
    max_waiting: MaxWaiting = None,
    max_waiting_tokens: MaxWaitingTokens = None,
    tokens_per_day: TokensPerDay = None,
    tokens_per_month: TokensPerMonth = None,
    prompt_weight: PromptWeight = None,
    answer_weight: AnswerWeight = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change the named fields of a group's policy and keep the others."""
    from shared.accounts.groups import Groups

    changes = _changes(weight, max_waiting, max_waiting_tokens)
    changes |= budget_changes(tokens_per_day, tokens_per_month, prompt_weight, answer_weight)
    if not changes:
        raise ConfigError("nothing to set: name at least one option, such as --weight 2")
    _print_policy(group, Groups(writable_store_client(state_dir)).change(group, changes), json=json)


@app.command()
def rm(group: Name, *, state_dir: StateDir = None) -> None:
    """Remove a group that has no tenants."""
    from shared.accounts.groups import Groups

    if not Groups(writable_store_client(state_dir)).remove(group):
        output.write_note(f"there is no group {group!r}")
        raise typer.Exit(FAULT)
    output.write_note(f"group {group!r} is removed")


def _changes(weight: str | None, max_waiting: str | None, max_waiting_tokens: str | None) -> "dict[str, Value | None]":
    """Return the policy fields whose options are on the command line. The value `default` becomes None."""
    given = {"weight": weight, "max_waiting": max_waiting, "max_waiting_tokens": max_waiting_tokens}
    return {
        name: None if text == "default" else parse_number(name, text, float if name == "weight" else int)
        for name, text in given.items()
        if text is not None
    }


def _print_policy(group: str, policy: "GroupPolicy", *, json: bool) -> None:
    if json:
        output.write_json({"group": group, "policy": asdict(policy)})
        return
    named = {name: value for name, value in asdict(policy).items() if value is not None}
    fields = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in named.items()
    )
    output.write_note(f"group {group!r}: {fields or 'the defaults'}")
