"""Makes the body of a webhook from the job or the batch that has ended; pure functions."""

import json
from datetime import UTC, datetime
from typing import Any

from shared.jobs.job import JobView
from shared.store.batches.batches import StoredBatch
from web.api.job_json import job_json
from web.openai.responses_answers import is_response, response_json
from web.operations.batches.batch_json import batch_json

#: A longer body is sent without its answer, which the receiver then reads with GET.
MAX_BODY_BYTES = 262_144
#: The fields that a long body lacks, with what is in their place.
_ANSWER: dict[str, Any] = {"text": None, "logprobs": None, "candidates": None, "output": [], "errors": None}


def webhook_id(subject_id: str) -> str:
    """Return the id of the webhook of a job or batch, which is the same in every try."""
    return f"msg_{subject_id}"


def event_body(subject: JobView | StoredBatch, ended_ms: int) -> bytes:
    """Return the body as JSON. It is the same in every try, and MAX_BODY_BYTES long at most."""
    kind, data = _event(subject)
    event = {
        "id": webhook_id(subject.id),
        "object": "event",
        "type": kind,
        "created_at": ended_ms // 1000,
        "timestamp": datetime.fromtimestamp(ended_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "data": data,
    }
    body = _dump(event)
    if len(body) <= MAX_BODY_BYTES:
        return body
    left_out = [name for name in _ANSWER if data.get(name)]
    return _dump(event | {"left_out": left_out, "data": data | {name: _ANSWER[name] for name in left_out}})


def _event(subject: JobView | StoredBatch) -> tuple[str, dict[str, Any]]:
    if isinstance(subject, StoredBatch):
        return f"batch.{subject.status}", batch_json(subject)
    if is_response(subject):
        data = response_json(subject)
        return f"response.{data['status']}", data
    return "job.ended", job_json(subject)


def _dump(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
