"""Determine the deadline of a request from its body, its headers or the defaults; pure functions."""

from dataclasses import dataclass, replace
from typing import Literal

from werkzeug.datastructures import Headers

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.queue import QueueSettings
from web.api.request_schema import QueueFields
from web.http.api_errors import invalid_field

#: How the client receives its answer: it polls, it holds the call open until the job has ended, or it reads a stream.
AnswerMode = Literal["poll", "hold", "stream"]

#: The timeout that OpenAI's client package sends if its user has set none, in seconds. A request with this timeout is
#: treated as a request without one.
_STAINLESS_DEFAULT_S = 600.0
#: How many seconds are subtracted from the client's timeout, so that the answer arrives before the client gives up. At
#: most half of the timeout is subtracted.
_STAINLESS_MARGIN_S = 1.0


@dataclass(frozen=True)
class RequestDeadline:
    """The deadline of a request and the source of this value, as both are written to the job's record."""

    deadline_ms: int
    source: Literal["body", "header", "default"]
    #: The start deadline: the time until the first token, in ms; None if the request has no start deadline.
    start_within_ms: int | None = None
    start_source: Literal["body", "default"] = "body"
    #: The deadline to which a slow pool may extend the defaults; 0 if the client named a deadline.
    longest_ms: int = 0

    def as_admitted(self, deadline_ms: int) -> "RequestDeadline":
        """Return this deadline with the length that the admitted job has, if the client named none."""
        return replace(self, deadline_ms=deadline_ms) if self.longest_ms else self

    def passes_before(self, retry_after_ms: int, answer_ms: int) -> bool:
        """Return whether a retry would be too late for the deadline or the start deadline that the client named.

        The client sends the retry after `retry_after_ms`, and its answer then takes another `answer_ms`. Default
        deadlines are ignored, because they do not show how long the client would wait.
        """
        misses_end = self.source != "default" and retry_after_ms + answer_ms > self.deadline_ms
        start_ms = self.start_within_ms if self.start_source == "body" else None
        return misses_end or (start_ms is not None and retry_after_ms > start_ms)


def max_deadline_ms(settings: QueueSettings, policy: TenantPolicy | None) -> int:
    """Return the longest deadline that a request of this tenant may name, in ms."""
    own = policy.max_deadline_ms if policy else None
    return settings.max_deadline_ms if own is None else min(own, settings.max_deadline_ms)


def resolve_deadline(
    mode: AnswerMode, body: QueueFields, headers: Headers, settings: QueueSettings, policy: TenantPolicy | None
) -> RequestDeadline:
    """Return the deadline of one request. Raises ApiError if it names one that is malformed, or too long."""
    longest, start_within_ms = max_deadline_ms(settings, policy), body.start_within_ms
    if body.deadline_ms is not None:
        if body.deadline_ms > longest:
            raise invalid_field("deadline_ms", f"deadline_ms={body.deadline_ms} is over the maximum of {longest}")
        return RequestDeadline(body.deadline_ms, "body", start_within_ms)
    if "X-Deadline-Ms" in headers:
        text = headers["X-Deadline-Ms"]
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= longest):
            message = f"X-Deadline-Ms={text[:60]!r} is not a whole number of ms from 1 to {longest}"
            raise invalid_field("X-Deadline-Ms", message)
        return RequestDeadline(int(text), "header", start_within_ms)
    return _default_deadline(mode, start_within_ms, headers, settings, longest)


def _default_deadline(
    mode: AnswerMode, start_within_ms: int | None, headers: Headers, settings: QueueSettings, longest: int
) -> RequestDeadline:
    """Return the deadline of a request that names no deadline in its body or in X-Deadline-Ms."""
    if mode == "stream":
        if start_within_ms is None:
            start_ms = min(settings.default_start_ms, longest)
            return RequestDeadline(longest, "default", start_ms, "default", longest_ms=longest)
        return RequestDeadline(longest, "default", start_within_ms, longest_ms=longest)
    timeout_ms = _client_timeout_ms(headers) if mode == "hold" else None
    if timeout_ms is not None:
        return RequestDeadline(min(timeout_ms, longest), "header", start_within_ms)
    default_ms = min(settings.default_deadline_ms, longest)
    return RequestDeadline(default_ms, "default", start_within_ms, longest_ms=longest)


def _client_timeout_ms(headers: Headers) -> int | None:
    """Return the timeout that OpenAI's package sends, minus the margin, in ms; None if its user has set no timeout."""
    for name in ("x-stainless-read-timeout", "x-stainless-timeout"):
        try:
            seconds = float(headers.get(name, ""))
        except ValueError:
            continue
        if 0 < seconds < 86_400 and seconds != _STAINLESS_DEFAULT_S:
            return max(1, int(1000 * max(seconds - _STAINLESS_MARGIN_S, seconds / 2)))
    return None
