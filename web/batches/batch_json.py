"""Converts files and batches to OpenAI's JSON objects; pure functions."""

from typing import Any

from shared.store.batches.batches import BatchStatus, StoredBatch
from shared.store.batches.files import StoredFile
from web.api.job_json import webhook_state

_TIMES = {
    "in_progress_at": BatchStatus.IN_PROGRESS,
    "finalizing_at": BatchStatus.FINALIZING,
    "completed_at": BatchStatus.COMPLETED,
    "failed_at": BatchStatus.FAILED,
    "expired_at": BatchStatus.EXPIRED,
    "cancelling_at": BatchStatus.CANCELLING,
    "cancelled_at": BatchStatus.CANCELLED,
}


def file_json(file: StoredFile) -> dict[str, Any]:
    """Return OpenAI's object of a file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_ms // 1000,
        "expires_at": file.expires_ms // 1000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_json(batch: StoredBatch) -> dict[str, Any]:
    """Return OpenAI's object of a batch."""
    completed, failed = batch.number("completed"), batch.number("failed")
    problems = batch.json("errors", None)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.fields.get("endpoint", ""),
        "errors": {"object": "list", "data": problems} if isinstance(problems, list) else None,
        "input_file_id": batch.fields.get("input_file", ""),
        "completion_window": batch.fields.get("window", ""),
        "status": batch.status,
        "output_file_id": batch.fields.get("output_file"),
        "error_file_id": batch.fields.get("error_file"),
        "created_at": batch.number("created_ms") // 1000,
        "expires_at": batch.number("expires_ms") // 1000,
        **{name: _seconds(batch, f"{status}_ms") for name, status in _TIMES.items()},
        "request_counts": {"total": batch.number("total"), "completed": completed, "failed": failed},
        "metadata": batch.json("metadata", None),
    } | webhook_state(batch.fields.get("callback_url", ""), batch.fields.get("webhook", ""))


def _seconds(batch: StoredBatch, name: str) -> int | None:
    return batch.number(name) // 1000 if name in batch.fields else None
