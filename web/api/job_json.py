"""A job as HTTP shows it; pure."""

from dataclasses import asdict
from typing import Any

from shared.jobs.job import JobView
from shared.jobs.outcomes import EndCode
from shared.jobs.states import TERMINAL_STATES, JobState
from web.api.logprobs import job_logprobs
from web.api.refusals import retry_headers

#: How often a job is worth a poll, in ms: one that runs or is next, and one further back in its list.
POLL_MS, LONGEST_POLL_MS = 250, 500

_MESSAGES = {
    EndCode.DEADLINE_EXCEEDED: "the deadline passed",
    EndCode.DEADLINE_UNMEETABLE: "the answer could no longer be ready in time",
    EndCode.CANCELED: "the job was canceled",
    EndCode.ABANDONED: "nobody polled the job any more",
    EndCode.SUPERSEDED: "a newer job with the same supersede_key took its place",
    EndCode.UNHEARD: "the store's answer to its submit was lost, and its client was told to come back",
    EndCode.CONTEXT_LENGTH_EXCEEDED: "prompt and answer do not fit the model's context",
    EndCode.INVALID_VALUE: "the engine cannot run the job as asked",
    EndCode.POISON: "every worker that ran the job was lost with it",
    EndCode.CORRUPT: "the job's record in the store cannot be read",
    EndCode.ENGINE_ERROR: "the engine failed on this job",
}


def poll_after_ms(view: JobView) -> int:
    """When the next poll makes sense."""
    return POLL_MS if view.position in {None, 1} else LONGEST_POLL_MS


def has_ended(view: JobView) -> bool:
    """Whether nothing about the job changes any more."""
    return view.state in TERMINAL_STATES


def job_json(view: JobView, ticket: str | None = None) -> dict[str, Any]:
    """The body that every native route answers of a job; with the address that its ticket opens, where there is one."""
    own = f"/v1/jobs/{view.id}"
    return {
        "id": view.id,
        "object": "job",
        "tenant": view.tenant,
        "model": view.model,
        "status": view.state.value,
        "created_at": _seconds(view.admitted_ms),
        "deadline_at": _seconds(view.deadline_at_ms),
        "started_at": _seconds(view.started_ms),
        "ended_at": _seconds(view.ended_ms),
        "attempts": view.attempts,
        "cancel_requested": view.cancel_requested,
        "patience": {"deadline_ms": view.deadline_ms, "from": view.patience_from},
        "queue": None if has_ended(view) else _queue(view),
        "waited": asdict(view.waited),
        "text": view.text,
        "finish_reason": view.finish_reason or None,
        "usage": usage_json(view),
        "logprobs": job_logprobs(view),
        "error": error_json(view),
        "metadata": view.metadata,
        "urls": {"self": own, "cancel": own, "events": f"{own}/events"}
        | ({"events_signed": f"{own}/events?ticket={ticket}"} if ticket else {}),
    } | degraded_json(view)


def degraded_json(view: JobView) -> dict[str, Any]:
    """What was changed of a job so that it is answered in time; nothing for one that runs as it was asked for."""
    return {"degraded": [change.as_dict() for change in view.degraded]} if view.degraded else {}


def job_headers(view: JobView) -> dict[str, str]:
    """While the job has not ended: when to ask again."""
    return {} if has_ended(view) else retry_headers(poll_after_ms(view))


def usage_json(view: JobView) -> dict[str, int | None] | None:
    """What the job cost, in tokens and ms; `ttft_ms` counts from the admission."""
    if not has_ended(view):
        return None
    usage = view.usage.as_dict() if view.usage else {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}
    left_queue_ms = view.first_claim_ms if view.first_claim_ms is not None else view.ended_ms
    queue_ms = None if left_queue_ms is None else max(0, left_queue_ms - view.admitted_ms)
    ttft_ms = usage.get("ttft_ms")
    claimed_ms = view.started_ms if view.started_ms is not None else view.admitted_ms
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "queue_ms": queue_ms,
        "prefill_ms": usage.get("prefill_ms"),
        "decode_ms": usage.get("decode_ms"),
        "ttft_ms": None if ttft_ms is None else ttft_ms + max(0, claimed_ms - view.admitted_ms),
    }


def error_json(view: JobView) -> dict[str, Any] | None:
    """Why an ended job did not succeed; None for all others."""
    if not has_ended(view) or view.state is JobState.SUCCEEDED:
        return None
    known = view.code in set(EndCode)
    message = view.message or (_MESSAGES[EndCode(view.code)] if known else "the job did not succeed")
    return {"code": view.code or view.state.value, "message": message, "stage": view.stage or None}


def queue_facts(view: JobView) -> dict[str, Any]:
    """Where a job stands and why it waited; a field of ours on OpenAI's routes, whose packages keep it as an extra."""
    context: dict[str, Any] = {"position": None, "ahead_tokens": None, "eta_ms": None, "poll_after_ms": None}
    return (context if has_ended(view) else _queue(view)) | {"waited": asdict(view.waited)}


def _queue(view: JobView) -> dict[str, Any]:
    return {
        "position": view.position,
        "ahead_tokens": view.ahead_tokens,
        "eta_ms": None if view.eta_at_ms is None else max(0, view.eta_at_ms - view.now_ms),
        "poll_after_ms": poll_after_ms(view),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
