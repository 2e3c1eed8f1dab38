"""`penstock tenants`: list tenants, and set or remove the policy of one tenant."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.commands import collection_backup
from shared.cli.policy_options import OF_TENANTS, Changes, display_value, policy_command, print_policy
from shared.cli.reach import Json, StateDir, collections_database, end_with, store_client, writable_store_client
from shared.durations import format_timestamp
from shared.errors import ConfigError

if TYPE_CHECKING:
    import redis

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
def list_all(*, state_dir: StateDir = None, json: Json = False) -> None:
    """List the tenants that have a policy or recently had a job admitted."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets
    from shared.jobs.tenant_policy import FIELDS

    client = store_client(state_dir)
    entries, signing = Tenants(client).list(), WebhookSecrets(client).owners()
    if json:
        output.write_json([_as_dict(entry) | {"has_webhook_secret": entry.name in signing} for entry in entries])
        return
    columns = ("tenant", *FIELDS, "webhook secret", "last admission")
    output.write_table(columns, (_row(entry, tuple(FIELDS), signing) for entry in entries))


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
    secret, client = read_secret_file(webhook_secret_file), writable_store_client(state_dir)
    tenants = Tenants(client)
    if not tenants.add(tenant, policy):
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
    secret, client = read_secret_file(webhook_secret_file), writable_store_client(state_dir)
    tenants = Tenants(client)
    new = tenants.describe_if_new(tenant)
    policy = tenants.change(tenant, changes)
    WebhookSecrets(client).change(tenant, secret)
    if new:
        output.write_note(new)
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

    client = writable_store_client(state_dir)
    erased = _erase_collections(client, tenant, state_dir) if erase_collections else None
    WebhookSecrets(client).change(tenant, "")
    removed = Tenants(client).remove(tenant)
    # Afterwards, because jobs that end meanwhile have their answers kept as long as the policy allows it.
    drop_answers(client, tenant)
    if erase_history:
        _erase_history(client, tenant, state_dir)
    if not removed:
        if erased is None and not erase_history:
            end_with(f"tenant {tenant!r} has no policy")
        return
    output.write_note(f"the defaults apply to tenant {tenant!r} again; its API keys remain valid (`penstock keys ls`)")


def _erase_collections(client: "redis.Redis", tenant: str, state_dir: str | None) -> int:
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
        drop_passages(client, tenant)
    record(client, local_actor(), "tenant.erase_collections", f"tenant {tenant}: {count} collections")
    output.write_note(f"{count} collections of tenant {tenant!r} were deleted")
    return count


def _erase_history(client: "redis.Redis", tenant: str, state_dir: str | None) -> None:
    from shared.accounts.admin_actions import local_actor, record
    from shared.history.stored import StoredHistory
    from shared.settings.settings import load

    points = StoredHistory(client).erase(tenant, load(state_dir=state_dir).history_bytes)
    record(client, local_actor(), "tenant.erase_history", f"tenant {tenant}: {points} points")
    output.write_note(f"{points} points of the history named tenant {tenant!r}, and no longer do")


def _as_dict(entry: "TenantEntry") -> dict[str, Any]:
    policy = None if entry.policy is None else asdict(entry.policy)
    return {"tenant": entry.name, "policy": policy, "last_admission_ms": entry.last_admission_ms}


def _row(entry: "TenantEntry", fields: tuple[str, ...], signing: frozenset[str]) -> tuple[object, ...]:
    cells = (None if entry.policy is None else display_value(name, getattr(entry.policy, name)) for name in fields)
    secret = "set" if entry.name in signing else None
    return (entry.name, *cells, secret, format_timestamp(entry.last_admission_ms))
