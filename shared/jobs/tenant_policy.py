"""The fields of a tenant's policy, and how each field is validated, written to the store and parsed."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ConfigError

Value = float | int | bool | str | tuple[str, ...]


_MODEL = re.compile(r"[^\s,]{1,200}\Z")
_GROUP = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_PASSAGES = re.compile(r"\{passages\}")
#: The longest template for passages, and how much of an invalid one a message quotes, in characters.
MAX_TEMPLATE, _SHOWN = 4_000, 60


class Policy:
    """Values of some of FIELDS; None for a field that is not set. The base of dataclasses."""

    def __post_init__(self) -> None:
        """Raise ConfigError if a value is invalid; the message names the field and quotes the value."""
        for name, value in vars(self).items():
            if value is not None:
                FIELDS[name].check(name, value)


@dataclass(frozen=True)
class TenantPolicy(Policy):
    """The settings of an operator for one tenant. For a field that is None, the system's default applies."""

    #: The tenant's weight relative to other tenants (default: 1). The store keeps it in thousandths.
    weight: float | None = None
    #: Bound on queued jobs (default: PENSTOCK_MAX_QUEUE_SIZE).
    max_waiting: int | None = None
    #: Bound on prompt tokens plus max_tokens, summed over queued jobs (default: PENSTOCK_MAX_QUEUE_TOKENS).
    max_waiting_tokens: int | None = None
    #: Bound on the bytes that the tenant's jobs and results take in the store (default: PENSTOCK_MAX_TENANT_BYTES).
    max_bytes: int | None = None
    #: Rate limits: requests per minute and tokens per minute (default: unlimited).
    rpm: int | None = None
    tpm: int | None = None
    #: Budgets: the most tokens that the tenant's jobs may use on a day and in a month, UTC (default: unlimited), and
    #: how much a prompt token and an answer token count in them (default: 1).
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    prompt_weight: float | None = None
    answer_weight: float | None = None
    #: The longest deadline that a request may name, in ms (default: PENSTOCK_MAX_DEADLINE_MS).
    max_deadline_ms: int | None = None
    #: The served names of the models that the tenant may use; None allows all models.
    models: tuple[str, ...] | None = None
    #: Whether all requests of the tenant get status 403.
    disabled: bool = False
    #: The model for requests that do not name one.
    default_model: str | None = None
    #: The group that takes turns and is admitted as one tenant (shared/accounts/groups.py).
    group: str | None = None
    #: Whether the tenant's answers may be cut under overload; has no effect unless PENSTOCK_DEGRADATION is on.
    degrade: bool = False
    #: Whether the tenant's prompts may be sent only to pools that are marked as local.
    private: bool = False
    #: Whether a request may be answered with the answer to an earlier prompt that asks the same in other words
    #: (web/semantic_cache).
    semantic_cache: bool = False
    #: Whether the tenant's requests are kept as long as the records of their jobs, so that these can be run again.
    run_again: bool = False
    #: How passages are put into the tenant's prompts: a text with `{passages}` and perhaps `{question}` (default: that
    #: of web/retrieval/prompting.py).
    retrieval_template: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models is not None and self.default_model not in (None, *self.models):
            raise ConfigError(f"default_model={self.default_model!r} is not among models={','.join(self.models)!r}")

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True)
class Field:
    """How one field of a policy is stored, validated, written and parsed."""

    stored: str
    check: Callable[[str, Value], None]
    dump: Callable[[Value], str]
    parse: Callable[[str], Value]


def _check_weight(name: str, value: Value) -> None:
    # The store keeps weights in thousandths, so 0.001 is the minimum. A tenant with the maximum, 1000, in practice
    # already starves all tenants with weight 1.
    fits = isinstance(value, int | float) and math.isfinite(value) and 0.001 <= value <= 1000
    if not fits or isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is out of range: 0.001 to 1000")


def _check_token_weight(name: str, value: Value) -> None:
    # The store keeps these weights in thousandths, too. With 0, such tokens are free.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value == 0 or 0.001 <= value <= 1000):  # type: ignore[operator]  # it is a number
        raise ConfigError(f"{name}={value!r} is neither 0 nor from 0.001 to 1000")


def _check_integer(high: int) -> Callable[[str, Value], None]:
    def check(name: str, value: Value) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise ConfigError(f"{name}={value!r} is not a whole number from 1 to {high}")

    return check


def _check_flag(name: str, value: Value) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is neither true nor false")


def _check_model(name: str, value: Value) -> None:
    if not isinstance(value, str) or not _MODEL.match(value):
        raise ConfigError(
            f"{name}={value!r} is not a model name: it needs 1 to 200 characters without commas and spaces"
        )


def _check_models(name: str, value: Value) -> None:
    if not isinstance(value, tuple) or not value:
        raise ConfigError(f"{name}={value!r} is not a list of at least one model name")
    for model in value:
        _check_model(name, model)


def _check_group(name: str, value: Value) -> None:
    if not isinstance(value, str) or not _GROUP.match(value):
        raise ConfigError(f"{name}={value!r} is not a group name: 1 to 64 letters, digits, '_' and '-'")


def _check_template(name: str, value: Value) -> None:
    if not isinstance(value, str) or not _PASSAGES.search(value) or len(value) > MAX_TEMPLATE or "\0" in value:
        raise ConfigError(
            f"{name}={str(value)[:_SHOWN]!r} is not a text of at most {MAX_TEMPLATE} characters with {{passages}} in it"
        )


def _join_names(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _integer_field(stored: str, high: int) -> Field:
    return Field(stored, _check_integer(high), str, int)


def _flag_field(stored: str) -> Field:
    return Field(stored, _check_flag, lambda value: str(int(bool(value))), lambda text: text == "1")


def _milli_field(stored: str, check: Callable[[str, Value], None]) -> Field:
    return Field(stored, check, lambda value: str(round(float(str(value)) * 1000)), lambda text: int(text) / 1000)


FIELDS: dict[str, Field] = {
    "weight": _milli_field("policy_weight_milli", _check_weight),
    # The maximum of a field that overrides a setting is the same as that of the setting (shared/settings).
    "max_waiting": _integer_field("policy_max_waiting", 1_000_000),
    "max_waiting_tokens": _integer_field("policy_max_waiting_tokens", 10**12),
    "max_bytes": _integer_field("policy_max_bytes", 10**15),
    "rpm": _integer_field("policy_rpm", 10_000_000),
    "tpm": _integer_field("policy_tpm", 10**12),
    "tokens_per_day": _integer_field("policy_tokens_per_day", 10**15),
    "tokens_per_month": _integer_field("policy_tokens_per_month", 10**15),
    "prompt_weight": _milli_field("policy_prompt_weight_milli", _check_token_weight),
    "answer_weight": _milli_field("policy_answer_weight_milli", _check_token_weight),
    "max_deadline_ms": _integer_field("policy_max_deadline_ms", 86_400_000),
    "models": Field("policy_models", _check_models, _join_names, lambda text: tuple(text.split(","))),
    "disabled": _flag_field("policy_disabled"),
    "default_model": Field("policy_default_model", _check_model, str, str),
    "group": Field("policy_group", _check_group, str, str),
    "degrade": _flag_field("policy_degrade"),
    "private": _flag_field("policy_private"),
    "semantic_cache": _flag_field("policy_semantic_cache"),
    "run_again": _flag_field("policy_run_again"),
    "retrieval_template": Field("policy_retrieval_template", _check_template, str, str),
}
