"""Models of the response bodies of operators' routes, as those in web/openapi/response_models.py."""

from typing import Literal

from pydantic import Field

from web.openapi.response_models import ResponseModel


class ListedJob(ResponseModel):
    """One job of any tenant, without its prompt and its answer. Times are in seconds since the epoch."""

    id: str
    object: Literal["job"]
    tenant: str
    key: str | None = Field(description="the label of the API key that submitted the job")
    model: str
    status: Literal["queued", "running", "succeeded", "failed", "canceled", "expired"]
    reason: str | None = Field(description="the error code or, without an error, the finish_reason")
    created_at: float
    started_at: float | None
    ended_at: float | None
    attempts: int
    worker: str | None
    cancel_requested: bool
    paused: bool
    prompt_tokens: int = Field(description="the door's estimate")
    max_tokens: int
    completion_tokens: int


class AllJobs(ResponseModel):
    """One page of the jobs of all tenants, newest first. It may be short, or empty, although others follow."""

    object: Literal["list"]
    data: list[ListedJob]
    cursor: str | None = Field(description="send this to continue; null if no job is left")
    has_more: bool
    records_read: int = Field(description="how many jobs were examined for this page")


class CanceledJobs(ResponseModel):
    """How many jobs a call has canceled."""

    object: Literal["canceled_jobs"]
    canceled: int = Field(description="queued jobs, which have ended")
    requested: int = Field(description="running jobs, whose workers are asked to stop them")
    ended: int = Field(description="jobs that had ended before they could be canceled")
    cursor: str | None = Field(description="send this to continue with the jobs that are left; null if none is")


SUCCESS_MODELS: dict[tuple[str, str], type[ResponseModel]] = {
    ("get", "/v1/admin/jobs"): AllJobs,
    ("delete", "/v1/admin/jobs"): CanceledJobs,
}
