"""Convert a job to the JSON of the native API; pure functions."""

from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from shared.answer_parts import read_parts
from shared.jobs.job import JobView
from shared.jobs.outcomes import EndCode
from shared.jobs.states import TERMINAL_STATES, JobState
from web.api.candidates import best_view, candidates_json, job_logprobs
from web.api.citations import changes_of, citations_json
from web.api.refusals import retry_headers

#: How long a client should wait between two polls of a job, in ms. The first value applies if the job runs or is next
#: in its tenant's queue, the second if it is further back in the queue.
POLL_MS, LONGEST_POLL_MS = 250, 500
#: The field of the form, and of answers, that says from which earlier answer this one was taken.
CACHED = "cached"
#: Characters of names of models, beside letters and digits, that need not be encoded in a header.
_IN_HEADERS = "/:@+"

_MESSAGES = {
    EndCode.DEADLINE_EXCEEDED: "the deadline passed",
    EndCode.DEADLINE_UNMEETABLE: "the answer could no longer be ready in time",
    EndCode.CANCELED: "the job was canceled",
    EndCode.ABANDONED: "the client stopped polling the job",
    EndCode.SUPERSEDED: "a newer job with the same supersede_key replaced this one",
    EndCode.UNHEARD: "the store's answer to the offer was lost, and the client was asked to send the request again",
    EndCode.CONTEXT_LENGTH_EXCEEDED: "the prompt and the answer do not fit into the model's context",
    EndCode.INVALID_VALUE: "the engine cannot run the job with these parameters",
    EndCode.UNSUPPORTED_PARAMETER: "the engine does not support what the request asks for",
    EndCode.POISON: "the job was given up because each worker that ran it was lost",
    EndCode.CORRUPT: "the job's record in the store cannot be read",
    EndCode.ENGINE_ERROR: "the engine failed on this job",
    EndCode.LOAD_FAILED: "the model could not be loaded",
    EndCode.NOT_LOCAL: "the job is private, and its pool is no longer marked as local",
    EndCode.UPSTREAM_REJECTED: "the upstream server did not accept the request",
    EndCode.UPSTREAM_BUSY: "the upstream server refused the job until its time was over",
    EndCode.EMBEDDINGS_UNSUPPORTED: "the upstream server makes no embeddings with this model",
    EndCode.UPSTREAM_LOST: "the upstream server failed in the middle of the answer",
}


def poll_after_ms(view: JobView) -> int:
    """Return how long the client should wait before its next poll, in ms."""
    return POLL_MS if view.position in {None, 1} else LONGEST_POLL_MS


def has_ended(view: JobView) -> bool:
    """Return whether the job has ended. An ended job does not change, except that its text can be erased."""
    return view.state in TERMINAL_STATES


def job_json(view: JobView, ticket: str | None = None) -> dict[str, Any]:
    """Return the JSON that all native routes return for a job; with a `ticket`, it has the signed URL of the events."""
    own, best = f"/v1/jobs/{view.id}", best_view(view)
    return (
        {
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
            "priority": view.priority,
            "cancel_requested": view.cancel_requested,
            "patience": {"deadline_ms": view.deadline_ms, "from": view.deadline_source},
            "queue": None if has_ended(view) else _queue(view),
            "waited": asdict(view.waited),
            "text": content_of(best),
            "finish_reason": best.finish_reason or None,
            "usage": usage_json(view),
            "logprobs": job_logprobs(best),
            "error": error_json(view),
            **view.shown,
            "urls": {"self": own, "cancel": own, "events": f"{own}/events"}
            | ({"events_signed": f"{own}/events?ticket={ticket}"} if ticket else {}),
        }
        | candidates_json(view)
        | routed_json(view)
        | degraded_json(view)
        | webhook_state(view.callback_url, view.webhook)
    )


def content_of(view: JobView) -> str | None:
    """Return the answer's text without its reasoning and its calls of tools; None until the job has ended."""
    return read_parts(view.text).content if view.text and view.form.get("parts") is True else view.text


def routed_json(view: JobView) -> dict[str, Any]:
    """Return a dict with the field `routed`, which says how the job got into its pool; empty if it was not routed."""
    return {"routed": asdict(view.routed)} if view.routed else {}


def webhook_state(url: str, words: str) -> dict[str, Any]:
    """Return a dict with the field `webhook`, from the three words that the script webhook_step writes after each try.

    It is empty without a URL.
    """
    if not url:
        return {}
    status, tries, last = [*words.split(" "), "", "", ""][:3]
    tried = {"tries": int(tries), "last_result": last} if tries.isdecimal() else {"tries": 0}
    return {"webhook": {"url": url, "status": status or "waiting", **tried}}


def route_headers(view: JobView) -> dict[str, str]:
    """Return the header that says how the job got into its pool; empty if it was not routed."""
    if view.routed is None:
        return {}
    return {"X-Penstock-Route": f"{quote(view.routed.pool, safe=_IN_HEADERS)}; why={view.routed.why}"}


def degraded_json(view: JobView) -> dict[str, Any]:
    """Return a dict with those that a job has of `degraded` (what was cut or left out), `citations` and `cached`."""
    changes = changes_of(view)
    cached = {CACHED: view.form[CACHED]} if CACHED in view.form else {}
    return cached | citations_json(view) | ({"degraded": [change.as_dict() for change in changes]} if changes else {})


def job_headers(view: JobView) -> dict[str, str]:
    """Return the headers that tell the client how the job was routed and, until it has ended, when to poll again."""
    return route_headers(view) | ({} if has_ended(view) else retry_headers(poll_after_ms(view)))


def usage_json(view: JobView) -> dict[str, int | None] | None:
    """Return the token counts and times of a job, or None if it has not ended. `ttft_ms` is measured from admission."""
    if not has_ended(view):
        return None
    usage = view.usage.as_dict() if view.usage else {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}
    left_queue_ms = view.first_claim_ms if view.first_claim_ms is not None else view.ended_ms
    queue_ms = None if left_queue_ms is None else max(0, left_queue_ms - view.admitted_ms)
    ttft_ms, prefill_ms = usage.get("ttft_ms"), usage.get("prefill_ms")
    claimed_ms = view.started_ms if view.started_ms is not None else view.admitted_ms
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "queue_ms": queue_ms,
        "start_ms": None if ttft_ms is None or prefill_ms is None else max(0, ttft_ms - prefill_ms),
        "prefill_ms": prefill_ms,
        "decode_ms": usage.get("decode_ms"),
        "ttft_ms": None if ttft_ms is None else ttft_ms + max(0, claimed_ms - view.admitted_ms),
    }


def error_json(view: JobView) -> dict[str, Any] | None:
    """Return why an ended job did not succeed; None if it succeeded or has not ended."""
    if not has_ended(view) or view.state is JobState.SUCCEEDED:
        return None
    known = view.code in set(EndCode)
    message = view.message or (_MESSAGES[EndCode(view.code)] if known else "the job did not succeed")
    return {"code": view.code or view.state.value, "message": message, "stage": view.stage or None}


def queue_facts(view: JobView) -> dict[str, Any]:
    """Return the job's place in the queue and its waiting times: the additional field `queue` on OpenAI's routes."""
    no_queue: dict[str, Any] = {"position": None, "ahead_tokens": None, "eta_ms": None, "poll_after_ms": None}
    return (no_queue if has_ended(view) else _queue(view)) | {"waited": asdict(view.waited)}


def _queue(view: JobView) -> dict[str, Any]:
    return {
        "position": view.position,
        "ahead_tokens": view.ahead_tokens,
        "eta_ms": None if view.eta_at_ms is None else max(0, view.eta_at_ms - view.now_ms),
        "poll_after_ms": poll_after_ms(view),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
