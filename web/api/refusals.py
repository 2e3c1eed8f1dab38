"""A refusal → status, headers and body; the same on every route, pure."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

from shared.jobs.outcomes import Refusal, Refused
from web.api.deadline import RequestDeadline

#: A client that comes back sooner than this only costs; one that waits longer has given up.
SHORTEST_HINT_MS, LONGEST_HINT_MS = 50, 60_000
#: Until the store is back, which takes a restart's time.
STORE_HINT_MS = 1_000

#: Why, for people; a test holds one for each reason.
_SENTENCES = {
    Refusal.INFLIGHT_FULL: "{value} of {max} jobs are in the system",
    Refusal.TENANT_QUEUE_FULL: "tenant {tenant!r} has {value} of {max} jobs waiting",
    Refusal.TENANT_TOKENS_FULL: "tenant {tenant!r} has {value} of {max} tokens waiting, and this job does not fit in",
    Refusal.TENANT_SHARE_FULL: "tenant {tenant!r} waits with more than its share",
    Refusal.BACKLOG_FULL: "more work waits than the workers do in the longest allowed wait",
    Refusal.DEADLINE_UNMEETABLE: "the answer could not be ready in time",
    Refusal.RATE_LIMITED: "tenant {tenant!r} has used up its rate ({value} of {max})",
    Refusal.DRAINING: "the system is being drained and takes no new jobs",
    Refusal.NO_WORKER: "no live worker serves model {model!r}",
    Refusal.STORE_UNAVAILABLE: "the store does not answer",
}
#: Why a request shall not be sent again by itself: its own patience ends first; or nobody sleeps that long in a call.
_IN_VAIN = "this request waits in vain"
_TOO_LONG = "the wait is too long for a retry within the call"

_TENANT_BOUNDS = frozenset({Refusal.TENANT_QUEUE_FULL, Refusal.TENANT_TOKENS_FULL, Refusal.TENANT_SHARE_FULL})


@dataclass(frozen=True)
class Yield:
    """The answer to who is refused."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def to_yield(
    refused: Refused, *, tenant: str, model: str, deadline: RequestDeadline | None = None, bound_status: int = 503
) -> Yield:
    """The answer to a refusal of the store. `bound_status` is PENSTOCK_TENANT_BOUND_STATUS.

    Whoever is told to come back after a minute, or so late that its own patience ends before its answer is
    there, is told not to retry; the hint stands for who comes anew.
    """
    reason = refused.reason
    status = 429 if reason is Refusal.RATE_LIMITED else bound_status if reason in _TENANT_BOUNDS else 503
    limits = {
        "limit": refused.limit,
        "value": refused.value,
        "max": refused.max,
        "inflight": refused.inflight,
        "max_inflight": refused.max_inflight,
    }
    why = _why(refused, tenant, model)
    if refused.hopeless:
        return _yield(status, reason, f"{why}, not even by an idle system", None, limits)
    hint_ms = refused.retry_hint_ms
    in_vain = deadline is not None and deadline.ends_before(hint_ms, refused.answer_ms or 0)
    stays_away = _IN_VAIN if in_vain else _TOO_LONG if hint_ms >= LONGEST_HINT_MS else None
    return _yield(status, reason, why, hint_ms, limits, stays_away)


def store_away() -> Yield:
    """The answer while the store does not: hints are spread, or all would come back at once."""
    hint_ms = int(STORE_HINT_MS * (1 + 0.2 * random.random()))  # noqa: S311 - spreads, does not hide
    limits = {"limit": "store", "value": 0, "max": 1, "inflight": None, "max_inflight": None}
    return _yield(503, Refusal.STORE_UNAVAILABLE, _SENTENCES[Refusal.STORE_UNAVAILABLE], hint_ms, limits)


def _yield(
    status: int, reason: Refusal, why: str, hint_ms: int | None, limits: dict[str, Any], stays_away: str | None = None
) -> Yield:
    """`hint_ms` None: there is no use in coming back with the same request, so nothing is promised.

    `stays_away`: why this request shall not come again by itself; None when it may.
    """
    headers = {} if stays_away is None and hint_ms is not None else {"x-should-retry": "false"}
    if hint_ms is not None:
        hint_ms = max(SHORTEST_HINT_MS, min(LONGEST_HINT_MS, hint_ms))
        headers |= retry_headers(hint_ms)
        why += "; " if stays_away is None else f"; {stays_away}, "
        why += f"come back in {_seconds(hint_ms)}"
    error = {
        "message": why,
        "type": "rate_limit_exceeded" if status == 429 else "server_overloaded",
        "param": None,
        "code": reason.value,
    }
    body = {
        "status": "yield",
        "retry_hint_ms": hint_ms,
        "reason": reason.value,
        "error": error,
        "limits": limits,
    }
    return Yield(status, body, headers)


def retry_headers(after_ms: int) -> dict[str, str]:
    """When to come back: exact in ms, and in whole seconds, rounded up, for those who only know these."""
    return {"retry-after-ms": str(after_ms), "Retry-After": str(max(1, math.ceil(after_ms / 1000)))}


def _seconds(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _why(refused: Refused, tenant: str, model: str) -> str:
    return _SENTENCES[refused.reason].format(tenant=tenant, model=model, value=refused.value, max=refused.max)
