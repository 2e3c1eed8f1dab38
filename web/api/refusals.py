"""Convert a refusal to a yield, an HTTP response that has the same form on every route; pure functions."""

import math
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from shared.jobs.outcomes import Refusal, Refused
from shared.store_fault import StoreFault
from web.api.deadline import RequestDeadline

#: The shortest and the longest retry hint, in ms. After a shorter hint, the retry would come too early and be refused
#: again, which costs work. A client that receives a longer hint would give up instead of retrying.
SHORTEST_HINT_MS, LONGEST_HINT_MS = 50, 60_000
#: The retry hint while the store does not answer, in ms: about the time that a restart of the store takes.
STORE_HINT_MS = 1_000
#: The retry hint of a process of the door that is stopping, in ms. After this time, another one or the restarted one is
#: expected to accept connections.
RESTART_HINT_MS = 1_000

#: The message for each refusal reason. A test checks that no reason is missing.
_MESSAGES = {
    Refusal.INFLIGHT_FULL: "{value} of {max} jobs are inflight",
    Refusal.TENANT_QUEUE_FULL: "tenant {tenant!r} has {value} of {max} jobs waiting",
    Refusal.TENANT_TOKENS_FULL: "tenant {tenant!r} has {value} of {max} tokens waiting, and this job does not fit",
    Refusal.TENANT_BYTES_FULL: "the jobs and results of tenant {tenant!r} take {value} of {max} bytes",
    Refusal.TENANT_SHARE_FULL: "tenant {tenant!r} has more than its share of the waiting work",
    Refusal.BACKLOG_FULL: "the waiting work would take the workers longer than the longest allowed wait",
    Refusal.DEADLINE_UNMEETABLE: "the answer would not be ready before the deadline: it is predicted to take "
    "{value} ms, and deadline_ms allows {max}",
    Refusal.RATE_LIMITED: "tenant {tenant!r} has used up its rate ({value} of {max})",
    Refusal.BUDGET_EXHAUSTED: "the jobs of {model!r} have cost {value} of {max} millionths today, and this job could "
    "exceed that",
    Refusal.NO_SUITABLE_POOL: "no pool of {model!r} takes this request ({limit})",
    Refusal.DRAINING: "the workers of model {model!r}, or all workers, are being drained, so no new jobs are admitted",
    Refusal.NO_WORKER: "no live worker serves model {model!r}",
    Refusal.LOAD_FAILED: "model {model!r} could not be loaded ({value} times in a row), and is tried again later",
    Refusal.STORE_UNAVAILABLE: "the store cannot serve",
}
#: The budgets of tokens by the limit that a refusal names: whose it is, and its period.
_BUDGETS = {
    f"{owner}_tokens_per_{period}": (whose, period)
    for owner, whose in (("tenant", "tenant {tenant!r}"), ("group", "the group of tenant {tenant!r}"))
    for period in ("day", "month")
}
#: The message for an exhausted budget, and that for a job that could use more than the whole budget.
_BUDGET_MESSAGES = {
    limit: f"{whose} has {{left}} of {{max}} tokens a {period} left until {{resets_at}}, and this job could use more"
    for limit, (whose, period) in _BUDGETS.items()
}
_WHOLE_BUDGET_MESSAGES = {
    limit: f"this job could use {{value}} tokens, and {whose} may use {{max}} in a whole {period}; "
    "with fewer max_tokens it may be admitted"
    for limit, (whose, period) in _BUDGETS.items()
}
#: The messages for bounds that leave room for clients which were told to come back about now, by the limit.
_DUE_MESSAGES = {
    f"tenant_waiting_and_due_{unit}": f"tenant {{tenant!r}} has {{value}} {unit} waiting or due from clients that were "
    "told when to come back, and may have {max}"
    for unit in ("jobs", "tokens")
}
#: The message if a job would have its first token too late.
_START_MESSAGES = {
    "predicted_start_ms": "the answer would not begin before the start deadline: its first token is predicted after "
    "{value} ms, and start_within_ms allows {max}"
}
#: The message if no cell of the tenant takes new jobs.
_CELL_MESSAGES = {"serving_cells": "the cells of tenant {tenant!r} take no new jobs"}
#: The messages for limits that have one of their own, whatever the reason.
_LIMIT_MESSAGES = _BUDGET_MESSAGES | _DUE_MESSAGES | _START_MESSAGES | _CELL_MESSAGES
#: The ends of messages to jobs that can never be admitted as they are, by the limit: they say what to change.
_WAYS_OUT = {
    "predicted_ms": ", not even on an idle system; name a longer deadline_ms or fewer max_tokens",
    "predicted_start_ms": ", not even on an idle system; name a longer start_within_ms or shorten the prompt",
}
#: Advice to a client. All but the first forbid an automatic retry, although a new request may be admitted later.
_RETRY = "retry in {wait}"
_DEADLINE_PASSES = "a retry would miss the deadline of this request; send a new request in {wait}"
_TOO_LONG = "the wait is too long for an automatic retry; send a new request in {wait}"
#: The message of an exhausted budget has the time at which it begins anew, which is usually much later than the hint.
_BUDGET_USED_UP = "send a new request after that time, or one that needs fewer tokens"

#: The reasons that say nothing about the load, so that an operator cannot choose another status.
_ALWAYS_429 = frozenset({Refusal.RATE_LIMITED, Refusal.BUDGET_EXHAUSTED})
_TENANT_BOUNDS = frozenset(
    {Refusal.TENANT_QUEUE_FULL, Refusal.TENANT_TOKENS_FULL, Refusal.TENANT_BYTES_FULL, Refusal.TENANT_SHARE_FULL}
)


@dataclass(frozen=True)
class Yield:
    """The HTTP response to a refusal."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def to_yield(
    refused: Refused, *, tenant: str, model: str, deadline: RequestDeadline | None = None, bound_status: int = 503
) -> Yield:
    """Return the response to a refusal by the store. `bound_status` is PENSTOCK_TENANT_BOUND_STATUS.

    The response asks the client not to retry automatically in four cases: the wait is longer than the longest hint, a
    budget of tokens is exhausted, a retry would miss the deadline that the client named, or the job could not be
    admitted even on an idle system or with an unused budget. In the last case, there is no hint. In the others, the
    hint says when to send a new request.
    """
    reason = refused.reason
    status = 429 if reason in _ALWAYS_429 else bound_status if reason in _TENANT_BOUNDS else 503
    limits: dict[str, Any] = {
        "limit": refused.limit,
        "value": refused.value,
        "max": refused.max,
        "inflight": refused.inflight,
        "max_inflight": refused.max_inflight,
    }
    if refused.resets_ms:
        limits["resets_at"] = _timestamp(refused.resets_ms)
    message = _message(refused, tenant, model)
    if _exceeds_whole_budget(refused):
        return _yield(status, reason, message, None, limits)
    if refused.hopeless:
        return _yield(status, reason, message + _WAYS_OUT.get(refused.limit, ""), None, limits)
    hint_ms = refused.retry_hint_ms
    too_late = deadline is not None and deadline.passes_before(hint_ms, refused.answer_ms or 0)
    advice = _DEADLINE_PASSES if too_late else _TOO_LONG if refused.too_long else _RETRY
    return _yield(status, reason, message, hint_ms, limits, _BUDGET_USED_UP if refused.limit in _BUDGETS else advice)


def with_return_ticket(answer: Yield, ticket: str | None, window_ms: int) -> Yield:
    """Return the response with the return ticket, in the body and in a header.

    It gets none if the client is not asked to retry, or if the time for which it is expected, `window_ms`, is 0.
    """
    if ticket is None or not window_ms or "x-should-retry" in answer.headers:
        return answer
    body = answer.body | {"return_ticket": ticket, "return_window_ms": window_ms}
    return replace(answer, body=body, headers=answer.headers | {"x-penstock-return-ticket": ticket})


def store_unavailable_yield(fault: StoreFault) -> Yield:
    """Return the response while the store cannot serve. Its hint varies, so that not all clients retry at once."""
    hint_ms = int(STORE_HINT_MS * (1 + 0.2 * random.random()))  # noqa: S311 - not used for security
    limits = {"limit": "store", "value": 0, "max": 1, "inflight": None, "max_inflight": None}
    refusal = _yield(503, Refusal.STORE_UNAVAILABLE, f"the store {fault.says}", hint_ms, limits)
    return replace(refusal, body=refusal.body | {"store_fault": fault.value})


def _yield(
    status: int,
    reason: Refusal,
    message: str,
    hint_ms: int | None,
    limits: dict[str, Any],
    advice: str = _RETRY,
) -> Yield:
    """Build the response. `hint_ms` is None if the same request can never be admitted.

    Unless `advice` is _RETRY, the response asks the client not to retry automatically.
    """
    headers = {} if advice == _RETRY and hint_ms is not None else {"x-should-retry": "false"}
    if hint_ms is not None:
        hint_ms = max(SHORTEST_HINT_MS, min(LONGEST_HINT_MS, hint_ms))
        headers |= retry_headers(hint_ms)
        message += f"; {advice.format(wait=_duration(hint_ms))}"
    error = {
        "message": message,
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
    """Return the headers that say when to retry: `retry-after-ms`, and `Retry-After` in seconds, rounded up."""
    return {"retry-after-ms": str(after_ms), "Retry-After": str(max(1, math.ceil(after_ms / 1000)))}


def _duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _timestamp(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _exceeds_whole_budget(refused: Refused) -> bool:
    """Return whether the job could use more than a whole budget: the refusal then has no time of a new beginning."""
    return refused.limit in _BUDGETS and not refused.resets_ms


def _message(refused: Refused, tenant: str, model: str) -> str:
    message = _LIMIT_MESSAGES.get(refused.limit, _MESSAGES[refused.reason])
    if _exceeds_whole_budget(refused):
        message = _WHOLE_BUDGET_MESSAGES[refused.limit]
    return message.format(
        tenant=tenant,
        model=model,
        value=refused.value,
        max=refused.max,
        limit=refused.limit,
        left=max(0, refused.max - refused.value),
        resets_at=_timestamp(refused.resets_ms) if refused.resets_ms else "",
    )
