"""The form of a policy on the console: its fields with their labels and defaults, and the changes that it sends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.durations import exact_duration
from shared.errors import ConfigError
from shared.jobs.group_policy import GroupPolicy
from shared.jobs.policy_texts import DEFAULT, format_field, parse_field, policy_field
from shared.jobs.tenant_policy import TenantPolicy, Value
from shared.settings.queue import QueueSettings
from shared.settings.setting import AUTO

#: Before the name of a field: the value that the page showed. Only fields that differ from it are changed, so that
#: what another operator has changed meanwhile stays.
_WAS = "was-"
_FLAGS = ("no", "yes")
_UNLIMITED = "unlimited"

#: The parts of the form, each with its fields and their labels.
_PARTS: dict[str, dict[str, str]] = {
    "Share": {"weight": "Weight", "group": "Group"},
    "Bounds": {
        "max_waiting": "Waiting jobs",
        "max_waiting_tokens": "Tokens of waiting jobs",
        "rpm": "Requests per minute",
        "tpm": "Tokens per minute",
        "max_bytes": "Bytes in the store",
        "max_deadline": "Longest deadline, such as 5m",
    },
    "Budgets": {
        "tokens_per_day": "Tokens per day (UTC)",
        "tokens_per_month": "Tokens per month (UTC)",
        "prompt_weight": "A prompt token counts",
        "answer_weight": "An answer token counts",
    },
    "Models": {"models": "Allowed models, comma-separated", "default_model": "Default model"},
    "Switches": {
        "disabled": "Disabled",
        "degrade": "Answers may be cut",
        "private": "Private: local pools only",
        "semantic_cache": "Semantic cache",
        "run_again": "Requests kept, to run again",
    },
}
_OF_GROUPS = frozenset(
    {
        *("weight", "max_waiting", "max_waiting_tokens"),
        *("tokens_per_day", "tokens_per_month", "prompt_weight", "answer_weight"),
    }
)


@dataclass(frozen=True)
class FormField:
    """One field of the form."""

    name: str
    label: str
    #: The text of the stored value; "" if none is stored and the default applies.
    value: str
    #: The text of the default.
    default: str
    #: The values to choose from; empty for a field to write into.
    choices: Sequence[str] = ()


def tenant_form(
    policy: TenantPolicy | None, bounds: Mapping[str, Any], settings: QueueSettings, groups: Sequence[str]
) -> dict[str, list[FormField]]:
    """Return the fields of a tenant's form, by part. `bounds` are those that hold without a policy."""
    defaults = _common_defaults(bounds) | {
        "group": "none",
        "max_bytes": "a quarter" if settings.max_tenant_bytes == AUTO else str(settings.max_tenant_bytes),
        "max_deadline": exact_duration(settings.max_deadline_ms),
        "models": "all",
        "default_model": "none",
    }
    # A browser would send another group in place of one that is not among the choices, because it was removed.
    own = set() if policy is None or policy.group is None else {policy.group}
    choices = {"group": ("", *sorted({*groups} | own))} | dict.fromkeys(_PARTS["Switches"], _FLAGS)
    return _form(policy or TenantPolicy(), defaults, choices, {name for part in _PARTS.values() for name in part})


def group_form(policy: GroupPolicy, bounds: Mapping[str, Any]) -> dict[str, list[FormField]]:
    """Return the fields of a group's form, by part; `bounds` as for a tenant."""
    return _form(policy, _common_defaults(bounds), {}, _OF_GROUPS)


def _common_defaults(bounds: Mapping[str, Any]) -> dict[str, str]:
    return {
        **dict.fromkeys(("weight", "prompt_weight", "answer_weight"), "1"),
        "max_waiting": str(bounds["max_waiting"]),
        "max_waiting_tokens": str(bounds["max_waiting_tokens"] or "by the rates of workers"),
    }


def _form(
    policy: TenantPolicy | GroupPolicy,
    defaults: Mapping[str, str],
    choices: Mapping[str, Sequence[str]],
    names: set[str] | frozenset[str],
) -> dict[str, list[FormField]]:
    form = {}
    for title, part in _PARTS.items():
        fields = [
            FormField(
                name,
                label,
                format_field(name, getattr(policy, policy_field(name)))
                or ("no" if choices.get(name) == _FLAGS else ""),
                defaults.get(name, _UNLIMITED),
                choices.get(name, ()),
            )
            for name, label in part.items()
            if name in names
        ]
        if fields:
            form[title] = fields
    return form


def changes_in(given: Mapping[str, str]) -> dict[str, Value | None]:
    """Return the changes that a form has sent, by the fields of the policy. An empty text restores the default.

    Raises ConfigError, whose message names the field and quotes its text, or says that nothing is changed.
    """
    changes: dict[str, Value | None] = {}
    for name in (name for part in _PARTS.values() for name in part):
        text = given.get(name, "").strip()
        if name in given and text != given.get(_WAS + name, ""):
            changes[policy_field(name)] = parse_field(name, text or DEFAULT)
    if not changes:
        raise ConfigError("nothing to set: change at least one field")
    return changes
