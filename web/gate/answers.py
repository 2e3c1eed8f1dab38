"""Build the frames that the gate sends, with the same fields as the corresponding HTTP answers; pure functions."""

import json
from typing import Any

from shared.jobs.job import JobView
from web.api.candidates import best_view, candidates_json
from web.api.job_json import degraded_json, error_json, job_json, routed_json, usage_json
from web.api.refusals import RESTART_HINT_MS
from web.gate.requests import BadFrame
from web.http.api_errors import ApiError, error_response
from web.jobs.event_stream import JobStarted, TextDelta

Frame = dict[str, Any]
Ref = str | int | None


def to_line(frame: Frame) -> bytes:
    """Encode a frame as one line of JSON. JSON escapes line ends, so the frame contains none."""
    return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def with_ref(ref: Ref, frame: Frame) -> Frame:
    """Return the frame with the client's `ref` added, or the unchanged frame if the client sent no `ref`."""
    return frame if ref is None else {"ref": ref} | frame


def accepted(ref: Ref, view: JobView) -> Frame:
    """Return the answer to a `submit` frame whose job was admitted."""
    return with_ref(ref, {"status": "accepted", "id": view.id} | routed_json(view))


def final(ref: Ref, view: JobView) -> Frame:
    """Return the last frame of a job: its outcome, and as much of the answer as was generated."""
    error, best = error_json(view), best_view(view)
    frame = {
        "status": view.state.value,
        "id": view.id,
        "text": best.text,
        "finish_reason": best.finish_reason or None,
        "usage": usage_json(view),
    }
    return with_ref(
        ref, frame | candidates_json(view) | degraded_json(view) | ({} if error is None else {"error": error})
    )


def progress(ref: Ref, view: JobView, item: JobStarted | TextDelta) -> Frame:
    """Return the frame for one event of a streamed job.

    A `started` frame begins a new attempt, and the `text` frames after it send the text from its beginning, unless the
    frame says that the job is resumed.
    """
    if isinstance(item, JobStarted):
        return with_ref(ref, {"status": "started", "id": view.id} | item.fields)
    return with_ref(ref, {"status": "text", "id": view.id} | item.fields)


def job_status(ref: Ref, view: JobView) -> Frame:
    """Return the answer to a `status` frame: the job's state and its place in the queue."""
    fields = job_json(view)
    names = ("status", "id", "queue", "attempts", "cancel_requested", "created_at", "started_at", "deadline_at")
    return with_ref(ref, {name: fields[name] for name in names} | degraded_json(view))


def stopping(ref: Ref) -> Frame:
    """Return the refusal with which a stopping gate answers every `submit` frame."""
    problem = ApiError("draining", f"this gate is stopping; retry in {RESTART_HINT_MS / 1000:.1f} s")
    error = error_response(problem).body["error"]
    return with_ref(ref, {"status": "yield", "retry_hint_ms": RESTART_HINT_MS, "reason": "draining", "error": error})


def error_frame(ref: Ref, fault: BadFrame | ApiError) -> Frame:
    """Return the error frame for a frame that the gate cannot serve."""
    if isinstance(fault, ApiError):
        error = error_response(fault).body["error"]
    else:
        error = {"message": fault.message, "type": "invalid_request_error", "param": fault.param, "code": fault.code}
    return with_ref(ref, {"status": "error", "code": fault.code, "error": error})
