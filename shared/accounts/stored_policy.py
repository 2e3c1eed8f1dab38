"""Reads the policies of tenants and groups from their hashes; a field that is not valid counts as its default."""

from collections.abc import Mapping
from typing import Any

from shared.errors import ConfigError
from shared.jobs.group_policy import GROUP_FIELDS, GroupPolicy
from shared.jobs.tenant_policy import FIELDS, Field, TenantPolicy, Value
from shared.store.decode import text


def parse_policy(tenant: str, fields: Mapping[Any, Any]) -> tuple[TenantPolicy | None, tuple[str, ...]]:
    """Return the policy (None if the tenant has no policy), and a sentence about each field that is not valid.

    The scripts count such fields as missing too (shared/lua/lib/admission/verdict.lua), and the tenant must not be shut
    out.
    """
    values, problems = _read(f"tenant {tenant!r}", fields, FIELDS)
    if values is None:
        return None, ()
    models, default_model = values.get("models"), values.get("default_model")
    if isinstance(models, tuple) and default_model not in (None, *models):
        stored = str(values.pop("default_model"))
        problems.append(_problem(f"tenant {tenant!r}", FIELDS["default_model"], stored, "is not among its models"))
    return TenantPolicy(**values), tuple(problems)  # type: ignore[arg-type]  # the fields were checked above


def parse_group_policy(group: str, fields: Mapping[Any, Any]) -> tuple[GroupPolicy | None, tuple[str, ...]]:
    """Return the policy of a group, as `parse_policy` does that of a tenant."""
    values, problems = _read(f"group {group!r}", fields, GROUP_FIELDS)
    if values is None:
        return None, ()
    return GroupPolicy(**values), tuple(problems)  # type: ignore[arg-type]  # the fields were checked above


def to_store(values: Mapping[str, Value | None], known: Mapping[str, Field]) -> tuple[dict[Any, str], list[str]]:
    """Return the fields of the hash to write for some fields of a policy, and those to delete because a value is None.

    Only these are written, so that changes of different fields at the same time do not overwrite each other.
    """
    written: dict[Any, str] = {"policy": "1"}
    written |= {known[name].stored: known[name].dump(value) for name, value in values.items() if value is not None}
    return written, [known[name].stored for name, value in values.items() if value is None]


def spoiled_fields(
    policy: TenantPolicy | GroupPolicy, stored_fields: Mapping[Any, Any], known: Mapping[str, Field]
) -> list[str]:
    """Return the fields that are stored, although the policy that was parsed from them has their defaults."""
    texts = {text(name): text(value) for name, value in stored_fields.items()}
    found = []
    for name, field in known.items():
        stored, value = texts.get(field.stored), getattr(policy, name)
        if stored is not None and (value is None or (value is False and stored != field.dump(value))):
            found.append(name)
    return found


def describe(values: Mapping[str, Value | None]) -> str:
    """Return the fields of a policy that differ from its defaults, for the record of an action."""
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None and value is not False)


def describe_changes(changes: Mapping[str, Value | None]) -> str:
    """Return the fields of a policy that were changed, for the record of an action."""
    return " ".join(f"{name}={'default' if value is None else value}" for name, value in changes.items())


def wrong_type(kind: str, name: str) -> tuple[str]:
    """Return a sentence about a tenant or a group whose hash another program has replaced by something else."""
    return (f"{kind} {name!r} has a value of another type in the store in place of its hash",)


def _read(
    owner: str, stored_fields: Mapping[Any, Any], known: Mapping[str, Field]
) -> tuple[dict[str, Value] | None, list[str]]:
    texts = {text(name): text(value) for name, value in stored_fields.items()}
    if "policy" not in texts:
        return None, []
    values: dict[str, Value] = {}
    problems = []
    for name, field in known.items():
        stored = texts.get(field.stored)
        if stored is None:
            continue
        try:
            value = field.parse(stored)
            field.check(name, value)
        except (ValueError, ArithmeticError, ConfigError):
            problems.append(_problem(owner, field, stored, "is not a valid value"))
        else:
            values[name] = value
    return values, problems


def _problem(owner: str, field: Field, stored: str, why: str) -> str:
    return f"{owner} has {field.stored}={stored[:80]!r} in the store, which {why}"
