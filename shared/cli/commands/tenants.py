"""`penstock tenants`: list tenants, and set or remove what holds for one of them."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.durations import parse_ms, shown_moment, shown_ms
from shared.cli.reach import FAULT, Json, StateDir, store_client
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.jobs.tenant_policy import TenantPolicy, Value
    from shared.store.tenants import TenantEntry

app = typer.Typer(no_args_is_help=True, help="Tenants: their weights, bounds, models.")

Name = Annotated[str, typer.Argument(metavar="TENANT", help="1 to 64 of letters, digits, `_` and `-`.")]
#: All as text, so that each may also be `default`: back to what holds for everybody.
_OR_DEFAULT = "or `default`"
Weight = Annotated[
    str | None, typer.Option(help=f"Share of the GPUs against others, 0.001 to 1000, {_OR_DEFAULT} (1).")
]
MaxWaiting = Annotated[str | None, typer.Option(help=f"Waiting jobs, {_OR_DEFAULT}.")]
MaxWaitingTokens = Annotated[str | None, typer.Option(help=f"Tokens of waiting jobs, {_OR_DEFAULT}.")]
Rpm = Annotated[str | None, typer.Option(help=f"Requests a minute, {_OR_DEFAULT}; more are told to come back (429).")]
Tpm = Annotated[str | None, typer.Option(help=f"Tokens a minute, {_OR_DEFAULT}; more are told to come back (429).")]
MaxDeadline = Annotated[str | None, typer.Option(metavar="SPAN", help=f"The longest patience, {_OR_DEFAULT}.")]
Models = Annotated[str | None, typer.Option(help=f"Served names it may use, comma-separated, {_OR_DEFAULT} (all).")]
DefaultModel = Annotated[str | None, typer.Option(help=f"For requests that name none, {_OR_DEFAULT}.")]
Degrade = Annotated[
    bool | None,
    typer.Option("--degrade/--no-degrade", help="Its answers may be cut where PENSTOCK_DEGRADATION is on."),
]
Disabled = Annotated[bool | None, typer.Option("--disabled/--enabled", help="Refuse every request with 403.")]


@app.command("ls")
def list_all(*, state_dir: StateDir = None, json: Json = False) -> None:
    """List tenants that have a policy or were seen by the door."""
    from shared.jobs.tenant_policy import FIELDS
    from shared.store.tenants import Tenants

    entries = Tenants(store_client(state_dir)).list()
    if json:
        output.as_json([_as_dict(entry) for entry in entries])
        return
    columns = ("tenant", *FIELDS, "last admission")
    output.table(columns, (_row(entry, tuple(FIELDS)) for entry in entries))


@app.command()
def add(
    tenant: Name,
    *,
    weight: Weight = None,
    max_waiting: MaxWaiting = None,
    max_waiting_tokens: MaxWaitingTokens = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    max_deadline: MaxDeadline = None,
    models: Models = None,
    default_model: DefaultModel = None,
    disabled: Disabled = None,
    degrade: Degrade = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Give a tenant a policy; refused when it has one."""
    from shared.jobs.tenant_policy import TenantPolicy
    from shared.store.tenants import Tenants

    changes = _changes(weight, max_waiting, max_waiting_tokens, rpm, tpm, max_deadline, models, default_model)
    changes |= _flags(disabled=disabled, degrade=degrade)
    named = {name: value for name, value in changes.items() if value is not None}
    policy = TenantPolicy(**named)  # type: ignore[arg-type]  # checked at birth
    tenants = Tenants(store_client(state_dir))
    if tenants.get(tenant) is not None:
        output.note(f"tenant {tenant!r} has a policy already; change it with `penstock tenants set`")
        raise typer.Exit(FAULT)
    tenants.set(tenant, policy)
    _told(tenant, policy, json=json)


@app.command("set")
def change(
    tenant: Name,
    *,
    weight: Weight = None,
    max_waiting: MaxWaiting = None,
    max_waiting_tokens: MaxWaitingTokens = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    max_deadline: MaxDeadline = None,
    models: Models = None,
    default_model: DefaultModel = None,
    disabled: Disabled = None,
    degrade: Degrade = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change what is named and leave the rest; counts within a second."""
    from shared.store.tenants import Tenants

    changes = _changes(weight, max_waiting, max_waiting_tokens, rpm, tpm, max_deadline, models, default_model)
    changes |= _flags(disabled=disabled, degrade=degrade)
    if not changes:
        raise ConfigError("nothing to set: name at least one option, such as --weight 2")
    _told(tenant, Tenants(store_client(state_dir)).change(tenant, changes), json=json)


@app.command()
def rm(tenant: Name, *, state_dir: StateDir = None) -> None:
    """Take a tenant's policy away: the defaults hold for it again. Its jobs and keys stay."""
    from shared.store.tenants import Tenants

    if not Tenants(store_client(state_dir)).remove(tenant):
        output.note(f"tenant {tenant!r} has no policy")
        raise typer.Exit(FAULT)
    output.note(f"tenant {tenant!r} has the defaults again; its keys still open the door (`penstock keys ls`)")


def _changes(
    weight: str | None,
    max_waiting: str | None,
    max_waiting_tokens: str | None,
    rpm: str | None,
    tpm: str | None,
    max_deadline: str | None,
    models: str | None,
    default_model: str | None,
) -> "dict[str, Value | None]":
    """What was named, by field; None for `default`."""
    given: dict[str, Value | None] = {}
    for name, text in {"weight": weight, "models": models, "default_model": default_model}.items():
        if text is not None:
            given[name] = None if text == "default" else _parsed(name, text)
    bounds = {"max_waiting": max_waiting, "max_waiting_tokens": max_waiting_tokens, "rpm": rpm, "tpm": tpm}
    for name, text in bounds.items():
        if text is not None:
            given[name] = None if text == "default" else _number(name, text, int)
    if max_deadline is not None:
        given["max_deadline_ms"] = None if max_deadline == "default" else parse_ms("max_deadline", max_deadline)
    return given


def _flags(**named: bool | None) -> "dict[str, Value | None]":
    """The yes-or-no fields that were named."""
    return {name: flag for name, flag in named.items() if flag is not None}


def _parsed(name: str, text: str) -> "Value":
    if name == "weight":
        return _number(name, text, float)
    return tuple(part.strip() for part in text.split(",")) if name == "models" else text


def _number(name: str, text: str, kind: type[int] | type[float]) -> "Value":
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name}={text!r} is neither {wanted} nor `default`") from None


def _told(tenant: str, policy: "TenantPolicy", *, json: bool) -> None:
    if json:
        output.as_json({"tenant": tenant, "policy": asdict(policy)})
        return
    named = {name: value for name, value in asdict(policy).items() if value not in (None, False)}
    told = ", ".join(f"{name}={_shown(name, value)}" for name, value in named.items())
    output.note(f"tenant {tenant!r}: {told or 'the defaults'}")


def _as_dict(entry: "TenantEntry") -> dict[str, Any]:
    policy = None if entry.policy is None else asdict(entry.policy)
    return {"tenant": entry.name, "policy": policy, "last_admission_ms": entry.last_admission_ms}


def _row(entry: "TenantEntry", fields: tuple[str, ...]) -> tuple[object, ...]:
    cells = (None if entry.policy is None else _shown(name, getattr(entry.policy, name)) for name in fields)
    return (entry.name, *cells, shown_moment(entry.last_admission_ms))


def _shown(name: str, value: object) -> object:
    if name == "max_deadline_ms" and isinstance(value, int):
        return shown_ms(value)
    if name in {"disabled", "degrade"}:
        return "yes" if value else None
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else value
