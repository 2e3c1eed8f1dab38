"""What can go wrong with a request to the upstream, by what the worker does about it; pure functions."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

#: How long a worker pauses if the upstream is busy and gives no hint, and the longest pause, in seconds.
_PAUSE_S, _MAX_PAUSE_S = 1.0, 3600.0
#: The longest message of the upstream that a job's end repeats, in characters.
_MAX_MESSAGE = 1_000


class UpstreamFault(Exception):
    """A request to the upstream did not lead to an answer. The message is safe to show to clients."""


class Unreachable(UpstreamFault):
    """The upstream was not reached, or closed the connection before its first byte.

    The job is given back without an attempt, and the worker claims nothing until the upstream answers again.
    `sent` says whether the upstream may have read the request.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Busy(UpstreamFault):
    """The upstream takes no more requests now: status 429 or 503. The job is given back without an attempt."""

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        #: How long the worker claims nothing.
        self.pause_s = pause_s


class Lost(UpstreamFault):
    """The upstream took the request and failed, hung, or sent half an answer. The attempt counts."""


class Rejected(UpstreamFault):
    """The upstream says that the request is wrong: the job fails. `param` is the field that the upstream named."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class CredentialsRefused(UpstreamFault):
    """The upstream does not accept the worker's key: the job fails, and an operator must act."""


def fault_of(status: int, headers: Mapping[str, str], body: bytes, now: datetime | None = None) -> UpstreamFault:
    """Return the fault for a response whose status is not 200. `now` is the time for hints that are dates."""
    message, param = _read_error(body)
    what = f"the upstream answered {status}" + (f": {message}" if message else "")
    if status in {401, 403}:
        # These messages tend to repeat a part of the key.
        return CredentialsRefused(f"the upstream answered {status}: it does not accept this worker's key")
    if status in {429, 503}:
        return Busy(what, _pause_s(headers, now or datetime.now(UTC)))
    if 400 <= status < 500 and status != 408:
        return Rejected(message or what, param)
    return Lost(what)


def _pause_s(headers: Mapping[str, str], now: datetime) -> float:
    """Return the pause that the headers ask for, in seconds: `retry-after-ms`, or `Retry-After` in s or as a date."""
    hints = [_number(headers.get("retry-after-ms"), 1000), _number(headers.get("retry-after"), 1)]
    given_s = next((hint_s for hint_s in hints if hint_s is not None), None)
    if given_s is None:
        try:
            given_s = (parsedate_to_datetime(headers.get("retry-after", "")) - now).total_seconds()
        except (ValueError, TypeError):  # TypeError: the date has no time zone
            given_s = _PAUSE_S
    return min(_MAX_PAUSE_S, max(0.05, given_s))


def _number(text: str | None, unit: float) -> float | None:
    try:
        number = float(text or "") / unit
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _read_error(body: bytes) -> tuple[str, str]:
    """Return the message of an error body and the field that it names; both "" if it has none as in OpenAI's API."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    error = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(error, str):
        return error[:_MAX_MESSAGE], ""
    if not isinstance(error, dict):
        return "", ""
    message, param = error.get("message", error.get("detail")), error.get("param")
    return (message[:_MAX_MESSAGE] if isinstance(message, str) else ""), (param[:200] if isinstance(param, str) else "")


def error_in_stream(value: Mapping[str, Any]) -> str:
    """Return the message of an error that arrived in the middle of a stream; "" if the event is no error."""
    return (_read_error(json.dumps(value).encode())[0] or "no message") if value.get("error") else ""
