"""Parse and format durations (`500ms`, `20s`, `5m`, `24h`, `90d`), and format timestamps."""

import re
from datetime import UTC, datetime

from shared.errors import ConfigError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)\Z")


def parse_duration_ms(option: str, text: str) -> int:
    """Parse a number with a unit and return whole ms. If `text` is invalid, raise ConfigError, which names `option`."""
    match = _DURATION.match(text.strip())
    if not match:
        raise ConfigError(f"{option}={text!r} is not a duration; write it like 500ms, 20s, 5m, 24h or 90d")
    return round(float(match[1]) * _UNITS_MS[match[2]])


def format_duration(duration_ms: float | None) -> str:
    """Format a duration in the largest unit in which it is at least 1, such as "1.5m". Return "" for None."""
    if duration_ms is None:
        return ""
    for unit in ("d", "h", "m", "s"):
        if abs(duration_ms) >= _UNITS_MS[unit]:
            return f"{duration_ms / _UNITS_MS[unit]:.3g}{unit}"
    return f"{duration_ms:.0f}ms"


def exact_duration(duration_ms: int) -> str:
    """Format a duration in the largest unit in which it is a whole number, such as "90s"."""
    unit = next(unit for unit in reversed(_UNITS_MS) if duration_ms % _UNITS_MS[unit] == 0)
    return f"{duration_ms // _UNITS_MS[unit]}{unit}"


#: The last ms that a date can express, in ms since the epoch: the end of the year 9999.
LAST_TIME_MS = 253_402_300_799_999


def utc_time(timestamp_ms: float) -> datetime:
    """Return a time, in ms since the epoch, as a date and time in UTC.

    A time in the store that another program has spoiled may lie beyond all dates, and counts as LAST_TIME_MS, or as the
    epoch if it lies before that.
    """
    return datetime.fromtimestamp(max(0, min(timestamp_ms, LAST_TIME_MS)) / 1000, UTC)


def format_timestamp(timestamp_ms: float | None) -> str:
    """Format a time, in ms since the epoch, as a UTC date and time with whole seconds. Return "" for None."""
    if timestamp_ms is None:
        return ""
    return utc_time(timestamp_ms).strftime("%Y-%m-%d %H:%M:%SZ")
