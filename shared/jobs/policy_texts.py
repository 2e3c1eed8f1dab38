"""Parses the values of a policy's fields from the texts that operators type on a command line or into a form."""

from collections.abc import Callable

from shared.durations import exact_duration, parse_duration_ms
from shared.errors import ConfigError
from shared.jobs.tenant_policy import Value

#: In place of a value, this text removes the field, so that the default applies.
DEFAULT = "default"
_FLAGS = {"yes": True, "no": False}


def parse_field(name: str, text: str) -> Value | None:
    """Return the value of a field, None for the text `default`.

    Raises ConfigError, whose message names the field and quotes the text. Whether a value is in range is checked by the
    policy.
    """
    return None if text == DEFAULT else _PARSERS[name](name, text)


def format_field(name: str, value: Value | None) -> str:
    """Return the text from which `parse_field` makes this value; "" for None and for a flag that is not set."""
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if name == "max_deadline" and isinstance(value, int):
        return exact_duration(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).removesuffix(".0")


def policy_field(name: str) -> str:
    """Return the name of a field in TenantPolicy: the longest deadline is typed with a unit, and stored in ms."""
    return "max_deadline_ms" if name == "max_deadline" else name


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text[:60]!r} is neither a whole number nor `{DEFAULT}`") from None


def _decimal(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}={text[:60]!r} is neither a number nor `{DEFAULT}`") from None


def _word(_name: str, text: str) -> str:
    return text


def _names(_name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _flag(name: str, text: str) -> bool:
    if text not in _FLAGS:
        raise ConfigError(f"{name}={text[:60]!r} is neither `yes` nor `no`")
    return _FLAGS[text]


_PARSERS: dict[str, Callable[[str, str], Value]] = {
    **dict.fromkeys(("weight", "prompt_weight", "answer_weight"), _decimal),
    **dict.fromkeys(("max_waiting", "max_waiting_tokens", "max_bytes"), _integer),
    **dict.fromkeys(("rpm", "tpm", "tokens_per_day", "tokens_per_month"), _integer),
    "max_deadline": parse_duration_ms,
    "models": _names,
    **dict.fromkeys(("default_model", "group"), _word),
    **dict.fromkeys(("disabled", "degrade", "private", "semantic_cache", "run_again"), _flag),
}
