"""What the gate says, as frames; pure. Bodies are those of HTTP where HTTP has one."""

import json
from typing import Any

from shared.jobs.job import JobView
from shared.store.replies import Snapshot
from web.api.job_json import degraded_json, error_json, job_json, usage_json
from web.gate.requests import BadFrame
from web.http.api_errors import ApiError, error_response
from web.operations.event_stream import JobStarted, TextDelta

Frame = dict[str, Any]
Ref = str | int | None

#: Until another gate, or this one again, listens.
_RESTART_HINT_MS = 1_000


def to_line(frame: Frame) -> bytes:
    """A frame as it goes over the wire. JSON escapes line ends, so that a frame is one line."""
    return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def tagged(ref: Ref, frame: Frame) -> Frame:
    """The frame with the client's tag, if it gave one."""
    return frame if ref is None else {"ref": ref} | frame


def accepted(ref: Ref, view: JobView) -> Frame:
    """The job is taken for good."""
    return tagged(ref, {"status": "accepted", "id": view.id})


def final(ref: Ref, view: JobView) -> Frame:
    """The last frame of a job: how it ended, and what of the answer there is."""
    error = error_json(view)
    frame = {
        "status": view.state.value,
        "id": view.id,
        "text": view.text,
        "finish_reason": view.finish_reason or None,
        "usage": usage_json(view),
    }
    return tagged(ref, frame | degraded_json(view) | ({} if error is None else {"error": error}))


def progress(ref: Ref, view: JobView, item: JobStarted | TextDelta) -> Frame:
    """What happened to a streamed job. With each start, its text begins anew."""
    if isinstance(item, JobStarted):
        return tagged(ref, {"status": "started", "id": view.id, "attempt": item.attempt})
    return tagged(ref, {"status": "text", "id": view.id, "text": item.text, "tokens": item.tokens})


def standing(ref: Ref, view: JobView) -> Frame:
    """Where a job stands."""
    shown = job_json(view)
    names = ("status", "id", "queue", "attempts", "cancel_requested", "created_at", "started_at", "deadline_at")
    return tagged(ref, {name: shown[name] for name in names} | degraded_json(view))


def metrics(ref: Ref, snapshot: Snapshot) -> Frame:
    """The whole system in three figures, the same as /metrics/fleet has."""
    figures = {
        "inflight": snapshot.inflight,
        "executed_total": snapshot.stats.get("executed", 0),
        "yielded_total": snapshot.stats.get("yielded", 0),
    }
    return tagged(ref, figures)


def pong(ref: Ref) -> Frame:
    """Somebody is there."""
    return tagged(ref, {"status": "pong"})


def stopping(ref: Ref) -> Frame:
    """The refusal of a gate that is about to stop."""
    error = {
        "message": f"this gate is stopping; come back in {_RESTART_HINT_MS / 1000:.1f} s",
        "type": "server_overloaded",
        "param": None,
        "code": "draining",
    }
    return tagged(ref, {"status": "yield", "retry_hint_ms": _RESTART_HINT_MS, "reason": "draining", "error": error})


def wrong(ref: Ref, fault: BadFrame | ApiError) -> Frame:
    """The one error that a frame gets which cannot be served."""
    if isinstance(fault, ApiError):
        error = error_response(fault).body["error"]
    else:
        error = {"message": fault.message, "type": "invalid_request_error", "param": fault.param, "code": fault.code}
    return tagged(ref, {"status": "error", "code": fault.code, "error": error})
