"""What one tenant may do: the fields of a policy, and how each is checked, written and read."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields

from shared.errors import ConfigError

Value = float | int | bool | str | tuple[str, ...]


_MODEL = re.compile(r"[^\s,]{1,200}\Z")


@dataclass(frozen=True)
class TenantPolicy:
    """What an operator has set for one tenant. None: the system's default holds."""

    #: Share of the GPUs against other tenants; 1 without a policy. Kept in thousandths.
    weight: float | None = None
    #: Waiting jobs (PENSTOCK_MAX_QUEUE_SIZE).
    max_waiting: int | None = None
    #: Prompt tokens + max_tokens, summed over waiting jobs (PENSTOCK_MAX_QUEUE_TOKENS).
    max_waiting_tokens: int | None = None
    #: Requests and tokens a minute; no limit without a policy.
    rpm: int | None = None
    tpm: int | None = None
    #: The longest patience that the tenant may name (PENSTOCK_MAX_DEADLINE_MS).
    max_deadline_ms: int | None = None
    #: Served names that the tenant may use; None: all.
    models: tuple[str, ...] | None = None
    #: Every request of the tenant is refused with 403.
    disabled: bool = False
    #: The model of requests that name none.
    default_model: str | None = None
    #: Its jobs may be answered shorter under pressure, where PENSTOCK_DEGRADATION is on.
    degrade: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError, naming the field and quoting the value, for what cannot hold."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                FIELDS[field.name].check(field.name, value)
        if self.models is not None and self.default_model not in (None, *self.models):
            raise ConfigError(f"default_model={self.default_model!r} is not among models={','.join(self.models)!r}")

    def may_use(self, model: str) -> bool:
        """Whether the tenant may name this served model."""
        return self.models is None or model in self.models


@dataclass(frozen=True)
class Field:
    """How one field of a policy is checked, written and read."""

    stored: str
    check: Callable[[str, Value], None]
    dump: Callable[[Value], str]
    parse: Callable[[str], Value]


def _check_weight(name: str, value: Value) -> None:
    # A thousandth is what the store resolves; a thousand to one starves the rest for all practical purposes.
    fits = isinstance(value, int | float) and math.isfinite(value) and 0.001 <= value <= 1000
    if not fits or isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is out of range: 0.001 to 1000")


def _check_whole(high: int) -> Callable[[str, Value], None]:
    def check(name: str, value: Value) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise ConfigError(f"{name}={value!r} is not a whole number from 1 to {high}")

    return check


def _check_flag(name: str, value: Value) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is neither true nor false")


def _check_model(name: str, value: Value) -> None:
    if not isinstance(value, str) or not _MODEL.match(value):
        raise ConfigError(f"{name}={value!r} is not a model's name: 1 to 200 characters, no comma, no space")


def _check_models(name: str, value: Value) -> None:
    if not isinstance(value, tuple) or not value:
        raise ConfigError(f"{name}={value!r} is not a list of at least one model's name")
    for model in value:
        _check_model(name, model)


def _names(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _whole(stored: str, high: int) -> Field:
    return Field(stored, _check_whole(high), str, int)


FIELDS: dict[str, Field] = {
    "weight": Field(
        "policy_weight_milli",
        _check_weight,
        lambda value: str(round(float(str(value)) * 1000)),
        lambda text: int(text) / 1000,
    ),
    # The bounds of the settings whose place these take (shared/settings/table.py).
    "max_waiting": _whole("policy_max_waiting", 1_000_000),
    "max_waiting_tokens": _whole("policy_max_waiting_tokens", 10**12),
    "rpm": _whole("policy_rpm", 10_000_000),
    "tpm": _whole("policy_tpm", 10**12),
    "max_deadline_ms": _whole("policy_max_deadline_ms", 86_400_000),
    "models": Field("policy_models", _check_models, _names, lambda text: tuple(text.split(","))),
    "disabled": Field("policy_disabled", _check_flag, lambda value: str(int(bool(value))), lambda text: text == "1"),
    "default_model": Field("policy_default_model", _check_model, str, str),
    "degrade": Field("policy_degrade", _check_flag, lambda value: str(int(bool(value))), lambda text: text == "1"),
}
