"""Makes the body of a webhook from the job or the batch that has ended; pure functions."""

import json
from typing import Any

from shared.durations import utc_time
from shared.jobs.job import JobView
from shared.store.batches.batches import StoredBatch
from web.api.job_json import job_json
from web.batches.records import batch_json
from web.openai.responses_answers import is_response, response_json

#: A longer body is sent without its answer, which the receiver then reads with GET.
MAX_BODY_BYTES = 262_144
#: The fields that a long body lacks, with their replacements; the first is the answer itself.
_JOB: dict[str, Any] = {"text": None, "logprobs": None, "candidates": []}
_RESPONSE: dict[str, Any] = {"output": []}
_BATCH: dict[str, Any] = {"errors": None}


def webhook_id(subject_id: str) -> str:
    """Return the id of the webhook of a job or batch, which is the same in every try."""
    return f"msg_{subject_id}"


def event_body(subject: JobView | StoredBatch, ended_ms: int, *, is_cut: bool = False) -> bytes:
    """Return the body as JSON. It is the same in every try, and MAX_BODY_BYTES long at most.

    `is_cut` says that the answer was too long to be copied.
    """
    kind, data, answer = _event(subject)
    event = {
        "id": webhook_id(subject.id),
        "object": "event",
        "type": kind,
        "created_at": ended_ms // 1000,
        "timestamp": utc_time(ended_ms).isoformat(timespec="milliseconds"),
        "data": data,
    }
    body = _dump(event)
    if len(body) <= MAX_BODY_BYTES and not is_cut:
        return body
    left_out = [name for i, name in enumerate(answer) if data.get(name) or (is_cut and i == 0)]
    return _dump(event | {"left_out": left_out, "data": data | {name: answer[name] for name in left_out}})


def _event(subject: JobView | StoredBatch) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the type of the event, its object, and the fields of the object that a long body lacks."""
    if isinstance(subject, StoredBatch):
        return f"batch.{subject.status}", batch_json(subject), _BATCH
    if is_response(subject):
        data = response_json(subject)
        return f"response.{data['status']}", data, _RESPONSE
    return "job.ended", job_json(subject), _JOB


def _dump(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
