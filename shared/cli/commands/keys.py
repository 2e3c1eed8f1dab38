"""`penstock keys`: create, list, remove and rotate API keys. A key is printed only once, when it is created."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.reach import Json, StateDir, end_with, write_new_key
from shared.cli.reached_cells import (
    CellName,
    ListedAccount,
    changing_accounts,
    reading_cells,
    writable_cells,
    write_accounts,
)
from shared.durations import format_timestamp, parse_duration_ms
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.accounts.key_record import KeyRecord, NewKey

#: The bounds of a key, by their names in lists (shared/jobs/key_bounds.py).
_BOUNDS = ("rpm", "tpm", "max_waiting")

#: Only a setting tells: `up` also opens its own door on a loopback address if PENSTOCK_AUTH is set nowhere.
_KEYS_IGNORED = (
    "PENSTOCK_AUTH=open: the door checks no keys, and jobs with this key count for the tenant that X-Tenant names, or "
    "`default`"
)

app = typer.Typer(no_args_is_help=True, help="Manage the API keys of tenants.")

KeySelector = Annotated[
    str,
    typer.Argument(metavar="KEY", help="The key's label, or at least the first 6 digits of the id that `ls` shows."),
]
_OR_NONE = "or `none`"
Rpm = Annotated[str | None, typer.Option(help=f"Requests per minute with this key, {_OR_NONE}.")]
Tpm = Annotated[str | None, typer.Option(help=f"Tokens per minute with this key, {_OR_NONE}.")]
MaxWaiting = Annotated[str | None, typer.Option(help=f"Maximum number of queued jobs of this key, {_OR_NONE}.")]
TenantFilter = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only keys of this tenant.")]


@app.command("ls")
def list_all(
    *, tenant: TenantFilter = None, cell: CellName = None, state_dir: StateDir = None, json: Json = False
) -> None:
    """List the records of all keys. The keys themselves are not stored."""
    from shared.accounts.api_keys import ApiKeys

    with reading_cells(state_dir, cell) as cells:
        found = {name: ApiKeys(client).ls(tenant) for name, client in cells.clients.items()}
        lists = {name: [_listed(one, now_ms) for one in records] for name, (now_ms, records) in found.items()}
        columns = ("id", "tenant", "label", "created", "expires", "act as", *_BOUNDS)
        write_accounts(cells, columns, lists, json=json, styles={"expired": "yellow"})


def _listed(record: "KeyRecord", now_ms: int) -> ListedAccount:
    row = (
        record.id,
        record.tenant,
        record.label,
        format_timestamp(record.created_ms),
        "expired" if record.expired(now_ms) else format_timestamp(record.expires_ms) or "never",
        record.act_as,
        *(getattr(record.bounds, name, None) for name in _BOUNDS),
    )
    return ListedAccount(row, _as_dict(record) | {"expired": record.expired(now_ms)})


@app.command()
def add(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant whose jobs the key may submit and read.")],
    *,
    label: Annotated[str, typer.Option(help="A name for the key, unique among the tenant's unexpired keys.")] = "",
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long the key is valid, such as 90d. Default: for ever."),
    ] = None,
    act_as: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB", help="Pattern of other tenants that the key may name in X-Tenant, such as 'team-*'."
        ),
    ] = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    max_waiting: MaxWaiting = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Create a key and print it on stdout. The key cannot be shown again.

    A door that checks no keys, such as that of `up` on a loopback address, ignores the key's tenant: its jobs count for
    the tenant that `X-Tenant` names, or `default`. For keys that count, start it with `PENSTOCK_AUTH=required`.
    """
    from shared.accounts.api_keys import ApiKeys
    from shared.accounts.tenants import Tenants
    from shared.jobs.key_bounds import KeyBounds
    from shared.settings.settings import load

    expires_in_ms = None if expires is None else parse_duration_ms("expires", expires)
    changes = _bound_changes(rpm=rpm, tpm=tpm, max_waiting=max_waiting)
    bounds = KeyBounds(**changes)
    cells = writable_cells(state_dir)
    with cells.changing_accounts() as client:
        new = ApiKeys(client).create(tenant, label=label, expires_in_ms=expires_in_ms, act_as=act_as, bounds=bounds)
        _print_new_key(new, json=json)
        notes = [Tenants(one).describe_if_new(tenant) for one in cells.clients.values()]
        if all(notes):
            output.write_note(notes[0])
        if load(state_dir=state_dir).auth == "open":
            output.write_note(_KEYS_IGNORED)


@app.command("set")
def change(
    selector: KeySelector,
    *,
    rpm: Rpm = None,
    tpm: Tpm = None,
    max_waiting: MaxWaiting = None,
    tenant: TenantFilter = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change the named bounds of a key and keep the others. Takes effect within a second."""
    from shared.accounts.api_keys import ApiKeys

    changes = _bound_changes(rpm=rpm, tpm=tpm, max_waiting=max_waiting)
    if not changes:
        raise ConfigError("nothing to set: name at least one option, such as --rpm 60")
    with changing_accounts(state_dir) as client:
        changed = ApiKeys(client).bound(selector, changes, tenant=tenant)
        _print_bounds(selector, changed, json=json)


def _print_bounds(selector: str, changed: "KeyRecord | None", *, json: bool) -> None:
    if changed is None:
        _exit_key_not_found(selector)
    elif json:
        output.write_json(_as_dict(changed))
    else:
        named = ((name, getattr(changed.bounds, name, None)) for name in _BOUNDS)
        bounds = ", ".join(f"{name}={value}" for name, value in named if value is not None)
        output.write_note(
            f"key {changed.id} of tenant {changed.tenant!r}{_label_suffix(changed)}: {bounds or 'no bounds'}"
        )


@app.command()
def rm(selector: KeySelector, *, tenant: TenantFilter = None, state_dir: StateDir = None, json: Json = False) -> None:
    """Remove a key, or all keys with a label. Within a second, the door stops accepting them."""
    from shared.accounts.api_keys import ApiKeys

    with changing_accounts(state_dir) as client:
        removed = ApiKeys(client).rm(selector, tenant=tenant)
        if json:
            output.write_json([_as_dict(record) for record in removed])
        if not removed:
            _exit_key_not_found(selector)
        for record in removed:
            output.write_note(f"removed key {record.id} of tenant {record.tenant!r}{_label_suffix(record)}")


@app.command()
def rotate(
    selector: KeySelector,
    *,
    overlap: Annotated[str, typer.Option(metavar="DURATION", help="How long the old key remains valid.")] = "24h",
    tenant: TenantFilter = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Create a key's successor and print it once. The old key expires after the overlap."""
    from shared.accounts.api_keys import ApiKeys

    overlap_ms = parse_duration_ms("overlap", overlap)
    with changing_accounts(state_dir) as client:
        new = ApiKeys(client).rotate(selector, overlap_ms=overlap_ms, tenant=tenant)
        if new is None:
            _exit_key_not_found(selector)
        else:
            _print_new_key(new, json=json)
            output.write_note(f"the old key remains valid for at most {overlap}")


def _bound_changes(**named: str | None) -> dict[str, int | None]:
    """Return the bounds whose options are on the command line. The value `none` becomes None."""
    from shared.jobs.key_bounds import parse_bounds

    return parse_bounds({name: text for name, text in named.items() if text is not None})


def _print_new_key(new: "NewKey", *, json: bool) -> None:
    details = f" of tenant {new.record.tenant!r}{_label_suffix(new.record)}"
    write_new_key("key", new.key, _as_dict(new.record), details, json=json)


def _exit_key_not_found(selector: str) -> None:
    end_with(f"no unexpired key has the label {selector!r} or an id that begins with it; see `penstock keys ls`")


def _label_suffix(record: "KeyRecord") -> str:
    return f", {record.label!r}" if record.label else ""


def _as_dict(record: "KeyRecord") -> dict[str, Any]:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "label": record.label,
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
        "act_as": record.act_as,
        "bounds": {name: getattr(record.bounds, name, None) for name in _BOUNDS},
    }
