"""`penstock tenants`: list tenants, and set or remove the policy of one tenant."""

from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import output
from shared.cli.commands import collection_backup
from shared.cli.policy_options import OF_TENANTS, Changes, display_value, policy_command, print_policy
from shared.cli.reach import Json, StateDir, collections_database, end_with
from shared.cli.reached_cells import (
    CellName,
    ListedAccount,
    ReachedCells,
    reading_cells,
    writable_cells,
    write_accounts,
)
from shared.durations import format_timestamp
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.accounts.tenants import TenantEntry

app = typer.Typer(no_args_is_help=True, help="Manage the policies of tenants: weights, bounds, models.")
app.command()(collection_backup.export_collections)
app.command()(collection_backup.import_collections)

Name = Annotated[str, typer.Argument(metavar="TENANT", help="1 to 64 letters, digits, `_` and `-`.")]
WebhookSecretFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="File with the secret that signs webhooks, whsec_…, or two of them; `default` removes it."
    ),
]


@app.command("ls")
def list_all(*, cell: CellName = None, state_dir: StateDir = None, json: Json = False) -> None:
    """List the tenants that have a policy or recently had a job admitted."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets
    from shared.jobs.tenant_policy import FIELDS

    with reading_cells(state_dir, cell) as cells:
        found = {
            name: (Tenants(client).list(), WebhookSecrets(client).owners()) for name, client in cells.clients.items()
        }
        latest: dict[str, int] = {}
        for entries, _ in found.values():
            for entry in entries:
                latest[entry.name] = max(latest.get(entry.name, 0), entry.last_admission_ms or 0)
        lists = {
            name: [
                _listed(replace(entry, last_admission_ms=latest[entry.name] or None), tuple(FIELDS), signing)
                for entry in entries
            ]
            for name, (entries, signing) in found.items()
        }
        write_accounts(cells, ("tenant", *FIELDS, "webhook secret", "last admission"), lists, json=json)


@app.command()
@policy_command(OF_TENANTS)
def add(
    tenant: Name,
    *,
    changes: Changes,
    webhook_secret_file: WebhookSecretFile = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Give a tenant a policy. Fails if the tenant already has one."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets, read_secret_file
    from shared.jobs.tenant_policy import TenantPolicy

    policy = TenantPolicy(**{name: value for name, value in changes.items() if value is not None})
    secret = read_secret_file(webhook_secret_file)
    with writable_cells(state_dir).changing_accounts() as client:
        if not Tenants(client).add(tenant, policy):
            end_with(f"tenant {tenant!r} already has a policy; change it with `penstock tenants set`")
        WebhookSecrets(client).change(tenant, secret)
        print_policy("tenant", tenant, policy, json=json)


@app.command("set")
@policy_command(OF_TENANTS)
def change(
    tenant: Name,
    *,
    changes: Changes,
    webhook_secret_file: WebhookSecretFile = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change the named fields of a tenant's policy and keep the others. Takes effect within a second."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets, read_secret_file

    if not changes and webhook_secret_file is None:
        raise ConfigError("nothing to set: name at least one option, such as --weight 2")
    secret, cells = read_secret_file(webhook_secret_file), writable_cells(state_dir)
    with cells.changing_accounts() as client:
        new = [Tenants(one).describe_if_new(tenant) for one in cells.clients.values()]
        policy = Tenants(client).change(tenant, changes)
        WebhookSecrets(client).change(tenant, secret)
        if all(new):
            output.write_note(new[0])
        print_policy("tenant", tenant, policy, json=json)


@app.command()
def rm(
    tenant: Name,
    *,
    erase_collections: Annotated[
        bool,
        typer.Option("--erase-collections", help="Also delete the tenant's collections, with their documents."),
    ] = False,
    erase_history: Annotated[
        bool,
        typer.Option("--erase-history", help="Also make its figures in the history those of no tenant in particular."),
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Remove a tenant's policy and its semantic cache. The defaults apply again. The tenant's jobs and keys stay."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets
    from shared.store.answer_cache import drop_answers

    cells = writable_cells(state_dir)
    erased = _erase_collections(cells, tenant, state_dir) if erase_collections else None

    def forget() -> None:
        for one in cells.clients.values():
            drop_answers(one, tenant)
        if erase_history:
            _erase_history(cells, tenant, state_dir)

    with ExitStack() as afterwards, cells.changing_accounts() as client:
        WebhookSecrets(client).change(tenant, "")
        removed = Tenants(client).remove(tenant)
        # Afterwards, because jobs that end meanwhile have their answers kept as long as the policy allows it.
        afterwards.callback(forget)
    if not removed:
        if erased is None and not erase_history:
            end_with(f"tenant {tenant!r} has no policy")
        return
    output.write_note(f"the defaults apply to tenant {tenant!r} again; its API keys remain valid (`penstock keys ls`)")


def _erase_collections(cells: ReachedCells, tenant: str, state_dir: str | None) -> int:
    """Delete the collections of a tenant, and return how many there were."""
    from shared.accounts.admin_actions import local_actor, record
    from shared.settings.settings import load
    from shared.store.passage_cache import drop_passages

    database = collections_database(load(state_dir=state_dir))
    if database is None:
        raise ConfigError("--erase-collections needs PENSTOCK_DATABASE_URL, the database of collections")
    try:
        count = database.erase_tenant(tenant)
    finally:
        database.close()
        for client in cells.clients.values():
            drop_passages(client, tenant)
    record(
        next(iter(cells.clients.values())),
        local_actor(),
        "tenant.erase_collections",
        f"tenant {tenant}: {count} collections",
    )
    output.write_note(f"{count} collections of tenant {tenant!r} were deleted")
    return count


def _erase_history(cells: ReachedCells, tenant: str, state_dir: str | None) -> None:
    from shared.accounts.admin_actions import local_actor, record
    from shared.history.stored import StoredHistory
    from shared.settings.settings import load

    most = load(state_dir=state_dir).history_bytes
    for name, client in cells.clients.items():
        points = StoredHistory(client).erase(tenant, most)
        record(client, local_actor(), "tenant.erase_history", f"tenant {tenant}: {points} points")
        output.write_note(cells.note(name, f"{points} points of the history named tenant {tenant!r}, and no longer do"))


def _listed(entry: "TenantEntry", fields: tuple[str, ...], signing: frozenset[str]) -> ListedAccount:
    values = (None if entry.policy is None else display_value(name, getattr(entry.policy, name)) for name in fields)
    secret = "set" if entry.name in signing else None
    policy = None if entry.policy is None else asdict(entry.policy)
    return ListedAccount(
        (entry.name, *values, secret, format_timestamp(entry.last_admission_ms)),
        {
            "tenant": entry.name,
            "policy": policy,
            "last_admission_ms": entry.last_admission_ms,
            "has_webhook_secret": entry.name in signing,
        },
    )
