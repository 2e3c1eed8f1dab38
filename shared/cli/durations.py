"""Spans and moments as people write and read them: `500ms`, `20s`, `5m`, `24h`, `90d`."""

import re
from datetime import UTC, datetime

from shared.errors import ConfigError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)\Z")


def parse_ms(name: str, text: str) -> int:
    """The span in whole ms. Raises ConfigError, naming the option, when the unit is missing or it is nothing."""
    found = _SPAN.match(text.strip())
    if not found:
        raise ConfigError(f"{name}={text!r} is no span of time; write 500ms, 20s, 5m, 24h or 90d")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def shown_ms(span_ms: float | None) -> str:
    """A span for people, in the largest unit of which there is at least one; nothing for None."""
    if span_ms is None:
        return ""
    for unit in ("d", "h", "m", "s"):
        if abs(span_ms) >= _UNITS_MS[unit]:
            return f"{span_ms / _UNITS_MS[unit]:.3g}{unit}"
    return f"{span_ms:.0f}ms"


def shown_moment(moment_ms: float | None) -> str:
    """A stored moment (ms since the epoch) as UTC to the second; nothing for None."""
    if moment_ms is None:
        return ""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
