"""Models of the response bodies of the routes for files and batches, as those in web/openapi/response_models.py."""

from typing import Any, Literal

from pydantic import Field

from web.openapi.response_models import ResponseModel


class File(ResponseModel):
    """A file; times are in seconds since the epoch."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileDeleted(ResponseModel):
    """The answer to the deletion of a file."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class _Page(ResponseModel):
    """One page of a list."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileList(_Page):
    """One page of files."""

    data: list[File]


class RequestCounts(ResponseModel):
    """The lines of a batch. The total is 0 until the lines were validated."""

    total: int
    completed: int
    failed: int


class Batch(ResponseModel):
    """A batch; times are in seconds since the epoch, null if they have not come."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None = Field(description="the invalid lines, if the batch has failed")
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    webhook: dict[str, str | int] = Field(default={}, description="where the end is told, and what became of that")


class BatchList(_Page):
    """One page of batches."""

    data: list[Batch]


ALL = (File, FileDeleted, FileList, Batch, BatchList)
#: The body of an upload, as /openapi.json describes it.
UPLOAD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string", "enum": ["batch"]}},
    "required": ["file", "purpose"],
}
