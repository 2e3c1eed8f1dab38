"""The options of `penstock tenants` and `penstock groups` for the fields of a policy, and how a policy is shown."""

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shared.cli import output
from shared.errors import ConfigError
from shared.jobs.policy_texts import DEFAULT, format_field, parse_field, policy_field

if TYPE_CHECKING:
    from shared.jobs.group_policy import GroupPolicy
    from shared.jobs.tenant_policy import TenantPolicy

#: Values by the names of a policy's fields. None removes a field, so that the default applies.
Changes = dict[str, Any]
_OR_DEFAULT = "or `default`"


class _Option(NamedTuple):
    annotation: Any
    #: Returns the field's value, given the option's name and text.
    parse: Callable[[str, Any], Any]


def _option(help_text: str, parse: Callable[[str, str], Any] = parse_field, *, metavar: str | None = None) -> _Option:
    """Return an option that is declared as text, because it also accepts `default`, which removes the field."""
    annotation = Annotated[str | None, typer.Option(help=help_text, metavar=metavar)]
    return _Option(annotation, lambda name, text: None if text == DEFAULT else parse(name, text))


def _flag(names: str, help_text: str) -> _Option:
    return _Option(Annotated[bool | None, typer.Option(names, help=help_text)], lambda _name, flag: flag)


def _text_of_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}={path!r} cannot be read: {error}") from None


_OPTIONS = {
    "weight": _option(f"Share of the GPUs relative to other tenants, 0.001 to 1000, {_OR_DEFAULT} (1)."),
    "max_waiting": _option(f"Maximum number of queued jobs, {_OR_DEFAULT}."),
    "max_waiting_tokens": _option(f"Maximum sum of the tokens of queued jobs, {_OR_DEFAULT}."),
    "max_bytes": _option(f"Maximum of the store's memory that jobs and results take, in bytes, {_OR_DEFAULT}."),
    "rpm": _option(f"Requests per minute, {_OR_DEFAULT}. Further requests get 429 and a retry hint."),
    "tpm": _option(f"Tokens per minute, {_OR_DEFAULT}. Further requests get 429 and a retry hint."),
    "tokens_per_day": _option(f"Budget of tokens for a day (UTC), {_OR_DEFAULT} (none). Further requests get 429."),
    "tokens_per_month": _option(f"Budget of tokens for a month (UTC), {_OR_DEFAULT} (none). Further requests get 429."),
    "prompt_weight": _option(f"What a prompt token counts in the budgets, 0 to 1000, {_OR_DEFAULT} (1)."),
    "answer_weight": _option(f"What an answer token counts in the budgets, 0 to 1000, {_OR_DEFAULT} (1)."),
    "max_deadline": _option(f"The longest deadline of a request, {_OR_DEFAULT}.", metavar="DURATION"),
    "models": _option(f"Names of the models that the tenant may use, comma-separated, {_OR_DEFAULT} (all)."),
    "default_model": _option(f"The model for requests that name none, {_OR_DEFAULT}."),
    "group": _option(f"The group with which the tenant shares its turns (`penstock groups`), {_OR_DEFAULT} (none)."),
    "disabled": _flag("--disabled/--enabled", "Refuse every request with 403, or serve the tenant again."),
    "degrade": _flag("--degrade/--no-degrade", "Allow shorter answers under overload, if PENSTOCK_DEGRADATION is on."),
    "private": _flag("--private/--no-private", "Send the tenant's prompts only to local pools (`penstock pools`)."),
    "semantic_cache": _flag(
        "--semantic-cache/--no-semantic-cache", "Answer a prompt that asks the same as an earlier one from the cache."
    ),
    "run_again": _flag("--run-again/--no-run-again", "Keep the requests of ended jobs, so that they can be run again."),
    "retrieval_template": _option(
        "File with the text that puts {passages} and the {question} into prompts, or `default`.",
        _text_of_file,
        metavar="FILE",
    ),
}
#: The options of a tenant, and those of a group, by name.
OF_TENANTS = tuple(_OPTIONS)
OF_GROUPS = (
    *("weight", "max_waiting", "max_waiting_tokens"),
    *("tokens_per_day", "tokens_per_month", "prompt_weight", "answer_weight"),
)


def policy_command(names: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options in place of its parameter `changes`, which gets the fields that they change."""
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_OPTIONS[name].annotation) for name in names
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            texts = {name: text for name in names if (text := given.pop(name)) is not None}
            changes = {policy_field(name): _OPTIONS[name].parse(name, text) for name, text in texts.items()}
            command(**given, changes=changes)

        own = signature(command)
        parameters = [
            parameter
            for parameter_of_command in own.parameters.values()
            for parameter in (options if parameter_of_command.name == "changes" else [parameter_of_command])
        ]
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # Typer reads it
        return run

    return decorate


def print_policy(kind: str, name: str, policy: "TenantPolicy | GroupPolicy", *, json: bool) -> None:
    if json:
        output.write_json({kind: name, "policy": asdict(policy)})
        return
    named = {field: value for field, value in asdict(policy).items() if value is not None and value is not False}
    fields = ", ".join(f"{field}={display_value(field, value)}" for field, value in named.items())
    output.write_note(f"{kind} {name!r}: {fields or 'the defaults'}")


def display_value(name: str, value: Any) -> object:
    if name == "retrieval_template" and value is not None:
        return "set"
    if name == "max_deadline_ms":
        return format_field("max_deadline", value) or None
    return format_field(name, value) or None if isinstance(value, bool | float | tuple) else value
