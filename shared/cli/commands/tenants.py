"""`penstock tenants`: list tenants, and set or remove the policy of one tenant."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.durations import format_duration, format_timestamp, parse_duration_ms
from shared.cli.reach import FAULT, Json, StateDir, store_client, writable_store_client
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.accounts.tenants import TenantEntry
    from shared.jobs.tenant_policy import TenantPolicy, Value

app = typer.Typer(no_args_is_help=True, help="Manage the policies of tenants: weights, bounds, models.")

Name = Annotated[str, typer.Argument(metavar="TENANT", help="1 to 64 letters, digits, `_` and `-`.")]
#: The options for numbers are declared as text, because each also accepts `default`, which removes the tenant's own
#: value.
_OR_DEFAULT = "or `default`"
Weight = Annotated[
    str | None, typer.Option(help=f"Share of the GPUs relative to other tenants, 0.001 to 1000, {_OR_DEFAULT} (1).")
]
MaxWaiting = Annotated[str | None, typer.Option(help=f"Maximum number of queued jobs, {_OR_DEFAULT}.")]
MaxWaitingTokens = Annotated[str | None, typer.Option(help=f"Maximum sum of the tokens of queued jobs, {_OR_DEFAULT}.")]
MaxBytes = Annotated[
    str | None, typer.Option(help=f"Maximum of the store's memory that jobs and results take, in bytes, {_OR_DEFAULT}.")
]
Rpm = Annotated[
    str | None, typer.Option(help=f"Requests per minute, {_OR_DEFAULT}. Further requests get 429 and a retry hint.")
]
Tpm = Annotated[
    str | None, typer.Option(help=f"Tokens per minute, {_OR_DEFAULT}. Further requests get 429 and a retry hint.")
]
TokensPerDay = Annotated[
    str | None, typer.Option(help=f"Budget of tokens for a day (UTC), {_OR_DEFAULT} (none). Further requests get 429.")
]
TokensPerMonth = Annotated[
    str | None,
    typer.Option(help=f"Budget of tokens for a month (UTC), {_OR_DEFAULT} (none). Further requests get 429."),
]
PromptWeight = Annotated[
    str | None, typer.Option(help=f"What a prompt token counts in the budgets, 0 to 1000, {_OR_DEFAULT} (1).")
]
AnswerWeight = Annotated[
    str | None, typer.Option(help=f"What an answer token counts in the budgets, 0 to 1000, {_OR_DEFAULT} (1).")
]
MaxDeadline = Annotated[
    str | None, typer.Option(metavar="DURATION", help=f"The longest deadline of a request, {_OR_DEFAULT}.")
]
Models = Annotated[
    str | None, typer.Option(help=f"Names of the models that the tenant may use, comma-separated, {_OR_DEFAULT} (all).")
]
DefaultModel = Annotated[str | None, typer.Option(help=f"The model for requests that name none, {_OR_DEFAULT}.")]
Group = Annotated[
    str | None,
    typer.Option(help=f"The group with which the tenant shares its turns (`penstock groups`), {_OR_DEFAULT} (none)."),
]
Degrade = Annotated[
    bool | None,
    typer.Option("--degrade/--no-degrade", help="Allow shorter answers under overload, if PENSTOCK_DEGRADATION is on."),
]
Private = Annotated[
    bool | None,
    typer.Option("--private/--no-private", help="Send the tenant's prompts only to local pools (`penstock pools`)."),
]
WebhookSecretFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="File with the secret that signs webhooks, whsec_…, or two of them; `default` removes it."
    ),
]
Disabled = Annotated[
    bool | None, typer.Option("--disabled/--enabled", help="Refuse every request with 403, or serve the tenant again.")
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
def add(
    tenant: Name,
    *,
    weight: Weight = None,
    max_waiting: MaxWaiting = None,
    max_waiting_tokens: MaxWaitingTokens = None,
    max_bytes: MaxBytes = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    tokens_per_day: TokensPerDay = None,
    tokens_per_month: TokensPerMonth = None,
    prompt_weight: PromptWeight = None,
    answer_weight: AnswerWeight = None,
    max_deadline: MaxDeadline = None,
    models: Models = None,
    default_model: DefaultModel = None,
    group: Group = None,
    disabled: Disabled = None,
    degrade: Degrade = None,
    private: Private = None,
    webhook_secret_file: WebhookSecretFile = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Give a tenant a policy. Fails if the tenant already has one."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets, read_secret_file
    from shared.jobs.tenant_policy import TenantPolicy

    changes = _changes(
        weight, max_waiting, max_waiting_tokens, max_bytes, rpm, tpm, max_deadline, models, default_model, group
    )
    changes |= budget_changes(tokens_per_day, tokens_per_month, prompt_weight, answer_weight)
    changes |= _flags(disabled=disabled, degrade=degrade, private=private)
    named = {name: value for name, value in changes.items() if value is not None}
    policy = TenantPolicy(**named)  # type: ignore[arg-type]  # __post_init__ checks the types
    secret, client = read_secret_file(webhook_secret_file), writable_store_client(state_dir)
    tenants = Tenants(client)
    if not tenants.add(tenant, policy):
        output.write_note(f"tenant {tenant!r} already has a policy; change it with `penstock tenants set`")
        raise typer.Exit(FAULT)
    WebhookSecrets(client).change(tenant, secret)
    _print_policy(tenant, policy, json=json)


@app.command("set")
def change(
    tenant: Name,
    *,
    weight: Weight = None,
    max_waiting: MaxWaiting = None,
    max_waiting_tokens: MaxWaitingTokens = None,
    max_bytes: MaxBytes = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    tokens_per_day: TokensPerDay = None,
    tokens_per_month: TokensPerMonth = None,
    prompt_weight: PromptWeight = None,
    answer_weight: AnswerWeight = None,
    max_deadline: MaxDeadline = None,
    models: Models = None,
    default_model: DefaultModel = None,
    group: Group = None,
    disabled: Disabled = None,
    degrade: Degrade = None,
    private: Private = None,
    webhook_secret_file: WebhookSecretFile = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change the named fields of a tenant's policy and keep the others. Takes effect within a second."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets, read_secret_file

    changes = _changes(
        weight, max_waiting, max_waiting_tokens, max_bytes, rpm, tpm, max_deadline, models, default_model, group
    )
    changes |= budget_changes(tokens_per_day, tokens_per_month, prompt_weight, answer_weight)
    changes |= _flags(disabled=disabled, degrade=degrade, private=private)
    if not changes and webhook_secret_file is None:
        raise ConfigError("nothing to set: name at least one option, such as --weight 2")
    secret, client = read_secret_file(webhook_secret_file), writable_store_client(state_dir)
    tenants = Tenants(client)
    new = tenants.describe_if_new(tenant)
    policy = tenants.change(tenant, changes)
    WebhookSecrets(client).change(tenant, secret)
    if new:
        output.write_note(new)
    _print_policy(tenant, policy, json=json)


@app.command()
def rm(tenant: Name, *, state_dir: StateDir = None) -> None:
    """Remove a tenant's policy, so that the defaults apply again. The tenant's jobs and keys stay."""
    from shared.accounts.tenants import Tenants
    from shared.accounts.webhook_secrets import WebhookSecrets

    client = writable_store_client(state_dir)
    WebhookSecrets(client).change(tenant, "")
    if not Tenants(client).remove(tenant):
        output.write_note(f"tenant {tenant!r} has no policy")
        raise typer.Exit(FAULT)
    output.write_note(f"the defaults apply to tenant {tenant!r} again; its API keys remain valid (`penstock keys ls`)")


def _changes(
    weight: str | None,
    max_waiting: str | None,
    max_waiting_tokens: str | None,
    max_bytes: str | None,
    rpm: str | None,
    tpm: str | None,
    max_deadline: str | None,
    models: str | None,
    default_model: str | None,
    group: str | None,
) -> "dict[str, Value | None]":
    """Return the policy fields whose options are on the command line. The value `default` becomes None."""
    changes: dict[str, Value | None] = {}
    for name, text in {"weight": weight, "models": models, "default_model": default_model, "group": group}.items():
        if text is not None:
            changes[name] = None if text == "default" else _parse_text(name, text)
    bounds = {
        "max_waiting": max_waiting,
        "max_waiting_tokens": max_waiting_tokens,
        "max_bytes": max_bytes,
        "rpm": rpm,
        "tpm": tpm,
    }
    for name, text in bounds.items():
        if text is not None:
            changes[name] = None if text == "default" else parse_number(name, text, int)
    if max_deadline is not None:
        changes["max_deadline_ms"] = (
            None if max_deadline == "default" else parse_duration_ms("max_deadline", max_deadline)
        )
    return changes


def budget_changes(
    tokens_per_day: str | None, tokens_per_month: str | None, prompt_weight: str | None, answer_weight: str | None
) -> "dict[str, Value | None]":
    """Return the budgets and their weights that are on the command line. The value `default` becomes None."""
    numbers = {"tokens_per_day": tokens_per_day, "tokens_per_month": tokens_per_month}
    weights = {"prompt_weight": prompt_weight, "answer_weight": answer_weight}
    return {
        name: None if text == "default" else parse_number(name, text, int if name in numbers else float)
        for name, text in (numbers | weights).items()
        if text is not None
    }


def _flags(**named: bool | None) -> "dict[str, Value | None]":
    """Return the boolean fields whose options are on the command line."""
    return {name: flag for name, flag in named.items() if flag is not None}


def _parse_text(name: str, text: str) -> "Value":
    if name == "weight":
        return parse_number(name, text, float)
    return tuple(part.strip() for part in text.split(",")) if name == "models" else text


def parse_number(name: str, text: str, kind: type[int] | type[float]) -> "Value":
    """Return the number in an option's text. Raises ConfigError, whose message names the field and quotes the text."""
    try:
        return kind(text)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name}={text!r} is neither {expected} nor `default`") from None


def _print_policy(tenant: str, policy: "TenantPolicy", *, json: bool) -> None:
    if json:
        output.write_json({"tenant": tenant, "policy": asdict(policy)})
        return
    named = {name: value for name, value in asdict(policy).items() if value is not None and value is not False}
    fields = ", ".join(f"{name}={_display_value(name, value)}" for name, value in named.items())
    output.write_note(f"tenant {tenant!r}: {fields or 'the defaults'}")


def _as_dict(entry: "TenantEntry") -> dict[str, Any]:
    policy = None if entry.policy is None else asdict(entry.policy)
    return {"tenant": entry.name, "policy": policy, "last_admission_ms": entry.last_admission_ms}


def _row(entry: "TenantEntry", fields: tuple[str, ...], signing: frozenset[str]) -> tuple[object, ...]:
    cells = (None if entry.policy is None else _display_value(name, getattr(entry.policy, name)) for name in fields)
    secret = "set" if entry.name in signing else None
    return (entry.name, *cells, secret, format_timestamp(entry.last_admission_ms))


def _display_value(name: str, value: object) -> object:
    if name == "max_deadline_ms" and isinstance(value, int):
        return format_duration(value)
    if name in {"disabled", "degrade", "private"}:
        return "yes" if value else None
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else value
