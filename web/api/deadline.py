"""How long a client waits for its answer: named in the body, in a header, or by default; pure."""

from dataclasses import dataclass
from typing import Literal

from werkzeug.datastructures import Headers

from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.settings import Settings
from web.http.api_errors import FieldError

#: How a caller is going to take its answer: polls, holds the call until the end, or reads a stream.
AnswerMode = Literal["poll", "hold", "stream"]

#: What the stock OpenAI package sends when its user named no timeout: counts as not named.
_STAINLESS_DEFAULT_S = 600.0
#: Taken off a client's own timeout, so that our answer is there before it gives up; but no more than half of it.
_STAINLESS_MARGIN_S = 1.0


@dataclass(frozen=True)
class RequestDeadline:
    """A deadline and where it came from, as the job's record says it."""

    deadline_ms: int
    source: Literal["body", "header", "default"]
    #: To the first token; None: whenever it comes.
    start_within_ms: int | None = None
    start_source: Literal["body", "default"] = "body"

    def ends_before(self, back_after_ms: int, answer_ms: int) -> bool:
        """Whether the client has given up when it comes back so late for an answer that takes so long.

        Only by what it told us itself: a default of ours is nobody's patience.
        """
        told = self.source != "default" and back_after_ms + answer_ms > self.deadline_ms
        start_ms = self.start_within_ms if self.start_source == "body" else None
        return told or (start_ms is not None and back_after_ms > start_ms)


def max_deadline_ms(settings: Settings, policy: TenantPolicy | None) -> int:
    """The longest patience that this tenant may name."""
    own = policy.max_deadline_ms if policy else None
    return settings.max_deadline_ms if own is None else min(own, settings.max_deadline_ms)


def resolve_deadline(
    manner: AnswerMode,
    *,
    named_ms: int | None,
    start_within_ms: int | None,
    headers: Headers,
    settings: Settings,
    policy: TenantPolicy | None,
) -> RequestDeadline | FieldError:
    """The patience of one request, or what is wrong with what it names."""
    longest = max_deadline_ms(settings, policy)
    if named_ms is not None:
        if named_ms > longest:
            return FieldError("deadline_ms", f"deadline_ms={named_ms} is over the maximum of {longest}")
        return RequestDeadline(named_ms, "body", start_within_ms)
    if "X-Deadline-Ms" in headers:
        text = headers["X-Deadline-Ms"]
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= longest):
            return FieldError(
                "X-Deadline-Ms", f"X-Deadline-Ms={text[:60]!r} is no whole number of ms from 1 to {longest}"
            )
        return RequestDeadline(int(text), "header", start_within_ms)
    return _unnamed(manner, start_within_ms, headers, settings, longest)


def _unnamed(
    manner: AnswerMode, start_within_ms: int | None, headers: Headers, settings: Settings, longest: int
) -> RequestDeadline:
    if manner == "stream":
        if start_within_ms is None:
            return RequestDeadline(longest, "default", min(settings.default_start_ms, longest), "default")
        return RequestDeadline(longest, "default", start_within_ms)
    hint_ms = _stainless_ms(headers) if manner == "hold" else None
    if hint_ms is not None:
        return RequestDeadline(min(hint_ms, longest), "header", start_within_ms)
    return RequestDeadline(min(settings.default_deadline_ms, longest), "default", start_within_ms)


def _stainless_ms(headers: Headers) -> int | None:
    """The client's own timeout as the OpenAI packages tell it, less our margin; None when its user named none."""
    for name in ("x-stainless-read-timeout", "x-stainless-timeout"):
        try:
            seconds = float(headers.get(name, ""))
        except ValueError:
            continue
        if 0 < seconds < 86_400 and seconds != _STAINLESS_DEFAULT_S:
            return max(1, int(1000 * max(seconds - _STAINLESS_MARGIN_S, seconds / 2)))
    return None
