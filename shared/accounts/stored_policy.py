"""Reads a tenant's policy from its hash; a field that another program has spoiled counts as its default."""

from collections.abc import Mapping
from typing import Any

from shared.errors import ConfigError
from shared.jobs.tenant_policy import FIELDS, TenantPolicy, Value
from shared.store.decode import text


def parse_policy(tenant: str, fields: Mapping[Any, Any]) -> tuple[TenantPolicy | None, tuple[str, ...]]:
    """Return the policy, None if there is none, and a sentence about each field that is not valid.

    The scripts count such fields as missing too (shared/lua/lib/verdict.lua), and the tenant must not be shut out.
    """
    texts = {text(name): text(value) for name, value in fields.items()}
    if "policy" not in texts:
        return None, ()
    values: dict[str, Value] = {}
    problems = []
    for name, field in FIELDS.items():
        stored = texts.get(field.stored)
        if stored is None:
            continue
        try:
            value = field.parse(stored)
            field.check(name, value)
        except (ValueError, ArithmeticError, ConfigError):
            problems.append(_problem(tenant, name, stored, "is not a valid value"))
        else:
            values[name] = value
    models, default_model = values.get("models"), values.get("default_model")
    if isinstance(models, tuple) and default_model not in (None, *models):
        problems.append(_problem(tenant, "default_model", str(values.pop("default_model")), "is not among its models"))
    return TenantPolicy(**values), tuple(problems)  # type: ignore[arg-type]  # the fields were checked above


def _problem(tenant: str, name: str, stored: str, why: str) -> str:
    return f"tenant {tenant!r} has {FIELDS[name].stored}={stored[:80]!r} in the store, which {why}"
