"""Checks a finished answer as its request asked, so that the job can move to a later pool; pure functions."""

import json
from collections.abc import Mapping
from typing import Any, Never

from shared.answer_parts import read_parts
from shared.jobs.job import Ending
from shared.jobs.outcomes import FinishReason, Outcome


def may_escalate(payload: Mapping[str, Any]) -> bool:
    """Return whether the request names a check. Its text is not shown before its end, so that the job can move."""
    return bool(payload.get("escalate"))


def failed_check(payload: Mapping[str, Any], ending: Ending) -> str:
    """Return the check that the answer fails, `invalid_json` or `length`, or "" if it passes all that are named.

    An answer with calls of tools need not be JSON. Of all others, the content is judged, without the reasoning.
    """
    checks = payload.get("escalate")
    if ending.outcome is not Outcome.SUCCEEDED or not isinstance(checks, list):
        return ""
    if "length" in checks and ending.finish_reason == FinishReason.LENGTH:
        return "length"
    if "invalid_json" not in checks:
        return ""
    parts = read_parts(ending.text)
    has_calls = parts.calls or (ending.extra.get("upstream") or {}).get("tool_calls")
    if not has_calls and not _is_json(parts.content):
        return "invalid_json"
    return ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_reject)
    except (ValueError, RecursionError):
        return False
    return True


def _reject(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")
