"""The faults of a request to the upstream, by the worker's reaction to them; pure functions."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from workers.upstream.error_bodies import ErrorBody, error_of, is_error, read_error

#: How long a worker pauses if the upstream is busy and gives no hint, and the longest pause, in seconds.
_PAUSE_S, _MAX_PAUSE_S = 1.0, 3600.0
#: Parts of error names that report a used-up quota or balance, as in `insufficient_quota` of OpenAI,
#: `exceeded_current_quota_error` of Moonshot, `billing_not_active` and `insufficient_user_quota` of one-api. A
#: quota for a rate, such as `Throttling.RateQuota` of DashScope, passes.
_EXHAUSTED = re.compile(r"_(quota|billing|balance|credits?|arrear(s|age)?|payment_required)_")
_PASSES = re.compile(r"_(throttl\w*|rate|rates)_")
#: Where a word of an error's name begins.
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z0-9]+")
#: A word that may be a part of a key, which messages about keys repeat.
_MASKED = re.compile(r"\S*\*\S*")
#: The statuses of a server that has too much to do. Anthropic's says 529.
_BUSY = frozenset({429, 503, 529})
#: The longest message of the upstream that a job's end repeats, in characters.
_MAX_MESSAGE = 1_000


class UpstreamFault(Exception):
    """A request to the upstream did not lead to an answer.

    The exception's text is for logs: it says what happened and repeats nothing that the upstream wrote, because an
    upstream's message may quote the prompt. `message` may be shown to the client, after the key was removed from it.
    """

    def __init__(self, what: str, message: str = "") -> None:
        super().__init__(what)
        self.message = message or what


class Unreachable(UpstreamFault):
    """The upstream was not reached, or closed the connection before its first byte.

    The job is given back without an attempt, and the worker claims nothing until the upstream answers again.
    `sent` says whether the upstream may have read the request.
    """

    def __init__(self, what: str, *, sent: bool) -> None:
        super().__init__(what)
        self.sent = sent


class Busy(UpstreamFault):
    """The upstream does not take this request now: status 429, 503 or 529. The job is given back without an attempt."""

    def __init__(self, what: str, message: str = "", *, pause_s: float, too_many: bool = False) -> None:
        super().__init__(what, message)
        #: How long the job waits.
        self.pause_s = pause_s
        #: Whether the upstream says that there were too many requests: status 429.
        self.too_many = too_many


class Lost(UpstreamFault):
    """The upstream took the request and failed, hung, or sent half an answer. The attempt counts."""


class Broken(Lost):
    """The upstream began an answer and broke off, as it does when it crashes."""


class Rejected(UpstreamFault):
    """The upstream says that the request is wrong: the job fails. `param` is the field that the upstream named."""

    def __init__(self, what: str, message: str = "", param: str = "") -> None:
        super().__init__(what, message)
        self.param = param


class NotAccepted(UpstreamFault):
    """The upstream does not accept the worker's key, does not have the model, or sends the request elsewhere.

    That may concern this request only, or all of them: then the upstream is `Misconfigured`.
    """

    def __init__(self, what: str, message: str = "", *, lacks_model: bool = False) -> None:
        super().__init__(what, message)
        #: Whether the upstream says that there is no such model or path.
        self.lacks_model = lacks_model


class NoEmbeddings(Rejected):
    """The upstream makes no embeddings with the model: mostly, because it generates text with it."""

    def __init__(self, status: int) -> None:
        message = "the model's upstream makes no embeddings with it"
        super().__init__(f"the upstream answered {status}: it makes no embeddings", message, "model")


class Misconfigured(UpstreamFault):
    """The upstream accepts no request of this worker. It counts as away, and an operator must act.

    `model` is the model that it lacks, or "" if it does not accept the worker's key or address.
    """

    def __init__(self, what: str, model: str) -> None:
        super().__init__(what)
        self.model = model


def makes_no_embeddings(status: int, body: bytes) -> bool:
    """Whether an error for a request for embeddings says that the upstream makes none with this model.

    Servers have no such route (404, 405), name it as not implemented, or say so with status 400. A 404 about a model
    says that there is no such model.
    """
    text = body[:_MAX_MESSAGE].decode(errors="replace").lower()
    if status == 404:
        return "model" not in text
    return status in {405, 501} or (status == 400 and "embedding" in text and "support" in text)


def fault_of(
    status: int, headers: Mapping[str, str], body: bytes, *, key: str = "", now: datetime | None = None
) -> UpstreamFault:
    """Return the fault for a response whose status is not 200.

    `key` is removed from the upstream's message. `now` is the time for hints that are dates.
    """
    return _fault(status, headers, read_error(body), key=key, now=now)


def _fault(
    status: int, headers: Mapping[str, str], error: ErrorBody, *, key: str, now: datetime | None = None
) -> UpstreamFault:
    what = f"the upstream answered {status}"
    message, param = _shown(error.message, key, _MAX_MESSAGE), _shown(error.param, key, 200)
    if _is_exhausted(error):
        if status in {401, 403}:
            message = _MASKED.sub("***", message)
        return Rejected(what, message or what, param)
    if status in _BUSY:
        pause_s = _pause_s(headers, now or datetime.now(UTC))
        return Busy(what, _with(what, message), pause_s=pause_s, too_many=status == 429)
    if status == 502:
        # A proxy before the upstream could not reach it, or got no answer.
        return Unreachable(what, sent=True)
    not_accepted = _not_accepted(status, what, message)
    if not_accepted is not None:
        return not_accepted
    if (400 <= status < 500 and status != 408) or status == 501:
        return Rejected(what, message or what, param)
    return Lost(what, _with(what, message))


def _not_accepted(status: int, what: str, message: str) -> NotAccepted | None:
    if status in {401, 403}:
        # These messages tend to repeat a part of the key.
        return NotAccepted(f"{what}: it does not accept this worker's key")
    if 300 <= status < 400:
        # Another request would be redirected as well, and the key must not be sent to another address.
        return NotAccepted(f"{what}: it redirects requests, so PENSTOCK_UPSTREAM_URL has to be changed")
    return NotAccepted(what, message or what, lacks_model=True) if status == 404 else None


def _with(what: str, message: str) -> str:
    return f"{what}: {message}" if message else ""


def fault_in_answer(value: Any, *, key: str, has_begun: bool) -> UpstreamFault | None:
    """Return the fault for an error that arrived with status 200, as an event or a response; None if it is no error.

    Some servers begin a stream before they look at the request. An error with the status of a wrong request is then the
    same as that response. `has_begun` is whether a part of the answer has arrived: then the upstream is not busy.
    """
    if not is_error(value):
        return None
    error = error_of(value)
    if _is_exhausted(error):
        return _fault(error.status or 429, {}, error, key=key)
    if 400 <= error.status < 500 and error.status != 408 and not (error.status == 429 and has_begun):
        return _fault(error.status, {}, error, key=key)
    if error.status in _BUSY and not has_begun:
        return _fault(error.status, {}, error, key=key)
    what = "the upstream failed in the middle of the answer"
    message = _shown(error.message, key, _MAX_MESSAGE) or "no message"
    return (Broken if has_begun else Lost)(what, f"{what}: {message}")


def _pause_s(headers: Mapping[str, str], now: datetime) -> float:
    """Return the pause that the headers ask for, in seconds: `retry-after-ms`, or `Retry-After` in s or as a date."""
    hints = [_number(headers.get("retry-after-ms"), 1000), _number(headers.get("retry-after"), 1)]
    given_s = next((hint_s for hint_s in hints if hint_s is not None), None)
    if given_s is None:
        try:
            given_s = (parsedate_to_datetime(headers.get("retry-after", "")) - now).total_seconds()
        except (ValueError, TypeError, OverflowError):  # TypeError: the date has no time zone
            given_s = _PAUSE_S
    return min(_MAX_PAUSE_S, max(0.05, given_s))


def _number(text: str | None, unit: float) -> float | None:
    try:
        number = float(text or "") / unit
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _is_exhausted(error: ErrorBody) -> bool:
    """Return whether the upstream names a bound that does not pass while a client waits: a quota, or money."""
    names = [f"_{_WORD.sub('_', name)}_".lower() for name in error.names]
    return any(_EXHAUSTED.search(name) and not _PASSES.search(name) for name in names)


def _shown(text: str, key: str, most: int) -> str:
    return (text.replace(key, "***") if key else text)[:most]
