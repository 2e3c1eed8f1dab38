"""Models of the response bodies of operators' routes, as those in web/openapi/response_models.py."""

from typing import Literal

from pydantic import Field

from web.openapi.response_models import ResponseModel

_CELL = "the name of the cell; only with several cells"
_CELLS_AWAY = "the cells that do not answer, and that the answer is not about; only with several cells"


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
    cell: str | None = Field(default=None, description=_CELL)


class AllJobs(ResponseModel):
    """One page of the jobs of all tenants, newest first. It may be short, or empty, although others follow."""

    object: Literal["list"]
    data: list[ListedJob]
    cursor: str | None = Field(description="send this to continue; null if no job is left")
    has_more: bool
    records_read: int = Field(description="how many jobs were examined for this page")
    cells_away: list[str] | None = Field(default=None, description=_CELLS_AWAY)


class CanceledJobs(ResponseModel):
    """How many jobs a call has canceled."""

    object: Literal["canceled_jobs"]
    canceled: int = Field(description="queued jobs, which have ended")
    requested: int = Field(description="running jobs, whose workers are asked to stop them")
    ended: int = Field(description="jobs that had ended before they could be canceled")
    cursor: str | None = Field(description="send this to continue with the jobs that are left; null if none is")
    cells_away: list[str] | None = Field(default=None, description=_CELLS_AWAY)


class HistoryFigures(ResponseModel):
    """Counts of a span of time. The jobs that waited, ran and were paused are means."""

    admitted: int
    succeeded: int
    failed: int
    canceled: int
    expired: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_micro: int = Field(description="in millionths of the currency")
    pauses: int = Field(description="how often jobs were paused")
    most_waiting: int
    waiting: float
    running: float
    paused: float
    first_token_p50_ms: int | None
    first_token_p99_ms: int | None
    refused: dict[str, int] = Field(description="requests, by the reason of the refusal")


class HistoryPoint(HistoryFigures):
    """One point of the history."""

    from_: str = Field(alias="from", description="ISO 8601, UTC")
    to: str


class HistoryMoment(ResponseModel):
    """The sums of one time. Without `tenant` and `model` in the query, also those of each tenant and model."""

    from_: str = Field(alias="from")
    to: str
    total: HistoryFigures
    tenants: dict[str, HistoryFigures] | None = None
    other_tenants: HistoryFigures | None = None
    models: dict[str, HistoryFigures] | None = None


class History(ResponseModel):
    """The history of a span of time."""

    object: Literal["history"]
    tenant: str | None
    model: str | None
    at: str | None
    from_: str = Field(alias="from")
    to: str
    step_s: int = Field(description="how long a point is: 10, 300 or 3600")
    data: list[HistoryPoint] = Field(description="oldest first; times about which nothing is known are left out")
    moment: HistoryMoment | None = Field(description="the minute with `at`, or a longer point; without it, the span")
    cell: str | None = Field(default=None, description=_CELL)
    unnamed_points: int = Field(description="points in which the tenant may be one of the other tenants")


SUCCESS_MODELS: dict[tuple[str, str], type[ResponseModel]] = {
    ("get", "/v1/admin/jobs"): AllJobs,
    ("delete", "/v1/admin/jobs"): CanceledJobs,
    ("get", "/v1/admin/history"): History,
}
