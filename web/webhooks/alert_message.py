"""Makes the message that tells alerts, for Slack or as a Standard Webhook; pure functions."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from shared.alerts.incidents import Line
from shared.durations import utc_time

#: A message has at most this many conditions; the others are in the next one. Each has at most 300 characters of text.
MAX_LINES = 20
_ANCHOR = "docs/alerts.md"


def message_id(lines: Sequence[Line]) -> str:
    """Return the id of a message, which is the same in each try as long as the same is to be told."""
    parts = [f"{line.status} {line.incident.key} {line.incident.since_ms} {line.incident.told_ms}" for line in lines]
    digest = hashlib.sha256("\n".join(parts).encode("utf-8", "replace"))
    return f"msg_alert_{digest.hexdigest()[:24]}"


def standard_body(message: str, lines: Sequence[Line], now_ms: int, sender: str, more: int = 0) -> bytes:
    """Return the body of a Standard Webhook; without lines, that of a test. `more` conditions are told later."""
    if not lines:
        kind = "alert.test"
    else:
        kind = "alert.firing" if any(line.status == "firing" for line in lines) else "alert.resolved"
    event: dict[str, Any] = {
        "id": message,
        "object": "event",
        "type": kind,
        "timestamp": utc_time(now_ms).isoformat(timespec="milliseconds"),
        "data": {"sender": sender, "conditions": [_condition(line) for line in lines], "more": more},
    }
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def slack_body(lines: Sequence[Line], sender: str, more: int = 0) -> bytes:
    """Return the body for an incoming webhook of Slack; without lines, that of a test."""
    rows = [f"Penstock ({_escaped(sender)})"]
    if not lines:
        rows.append("This is a test of alerts. Nothing is wrong.")
    for line in lines:
        incident = line.incident
        since = utc_time(incident.since_ms).isoformat(timespec="seconds").replace("+00:00", "Z")
        sign = ":red_circle:" if line.status == "firing" else ":large_green_circle:"
        words = f"{line.status} since {since}" if line.status == "firing" else f"resolved, began {since}"
        rows.append(f"{sign} *{incident.condition}* {words}: {_escaped(incident.text)}")
    if more:
        rows.append(f"{more} more follow.")
    return json.dumps({"text": "\n".join(rows)}, ensure_ascii=False).encode("utf-8", "replace")


def _condition(line: Line) -> dict[str, Any]:
    incident = line.incident
    return {
        "status": line.status,
        "condition": incident.condition,
        "subject": incident.subject or None,
        "text": incident.text,
        "since": utc_time(incident.since_ms).isoformat(timespec="milliseconds"),
        "docs": f"{_ANCHOR}#{incident.condition}",
    }


def _escaped(words: str) -> str:
    """Return a text in which Slack finds no mention and no link: names in it come from clients."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
