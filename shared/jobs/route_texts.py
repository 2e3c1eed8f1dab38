"""Parses the steps of routes from the texts that operators type on a command line or into a form, and formats them."""

from typing import Any

from shared.errors import ConfigError
from shared.jobs.pool_terms import format_amount, parse_amount
from shared.jobs.route import RouteStep

_NUMBERS = ("min_prompt", "max_prompt", "max_answer")
_PARTS = ("end_within", "share")


def parse_step(text: str) -> RouteStep:
    """Return the step that an argument describes. Raises ConfigError, whose message names the field and quotes it."""
    pool, *conditions = text.split(",")
    given: dict[str, Any] = {}
    for condition in conditions:
        field, is_given, value = condition.strip().partition("=")
        if not is_given:
            raise ConfigError(f"condition={condition!r} is not of the form CONDITION=VALUE")
        if field == "window":
            given["windows"] = (*given.get("windows", ()), _parse_window(value))
            continue
        stored, parsed = _parse_condition(field, value)
        if stored in given:
            raise ConfigError(f"{field}={value!r} is given twice for pool {pool!r}")
        given[stored] = parsed
    return RouteStep(pool, **given)


def _parse_condition(field: str, value: str) -> tuple[str, object]:
    if field in _NUMBERS:
        if not (value.isascii() and value.isdigit() and len(value) < 12):
            raise ConfigError(f"{field}={value!r} is not a whole number")
        return field, int(value)
    if field in _PARTS:
        return field, _parse_part(field, value)
    if field == "max_price":
        return "max_price_micro", parse_amount(field, value)
    if field == "features":
        return field, () if value == "none" else tuple(value.split("+"))
    names = ", ".join((*_NUMBERS, *_PARTS, "features", "max_price", "window"))
    raise ConfigError(f"condition={field!r} is not one of {names}")


def _parse_part(field: str, text: str) -> int:
    """Return a percentage in ten-thousandths."""
    try:
        part = round(float(text.removesuffix("%")) * 100)
    except (ValueError, OverflowError):
        part = -1
    if not text.endswith("%") or not 1 <= part <= 10_000:
        raise ConfigError(f"{field}={text!r} is not a percentage from 0.01% to 100%")
    return part


def _parse_window(text: str) -> tuple[int, int]:
    minutes = []
    for time in text.split("-"):
        hour, _, minute = time.partition(":")
        if not all(part.isascii() and part.isdigit() and len(part) == 2 for part in (hour, minute)):
            break
        minutes.append(60 * int(hour) + int(minute) if int(minute) < 60 else -1)
    if len(minutes) != 2 or not all(0 <= minute <= 1_440 for minute in minutes):
        raise ConfigError(f"window={text!r} is not two times of day in UTC, such as 22:00-06:00")
    return minutes[0], minutes[1]


def format_step(step: RouteStep) -> str:
    """Return the text from which `parse_step` makes this step."""
    words = [step.pool]
    for name, value in step.as_dict().items():
        if name in _NUMBERS:
            words.append(f"{name}={value}")
        elif name in _PARTS:
            words.append(f"{name}={value / 100:g}%")
        elif name == "max_price_micro":
            words.append(f"max_price={format_amount(value)}")
        elif name == "features":
            words.append(f"features={'+'.join(value) or 'none'}")
        elif name == "windows":
            words += [f"window={_clock(start)}-{_clock(end)}" for start, end in value]
    return ",".join(words)


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
