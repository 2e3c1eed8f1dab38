"""A tenant's own jobs, as the store holds them: read, listed, erased."""

from shared.jobs.job import JobView
from shared.store.replies import JobPage
from web.http.api_errors import ApiError
from web.runtime.context import DoorContext


def find_job(context: DoorContext, job_id: str, tenant: str | None) -> JobView | None:
    """The job as it is now, which counts as a poll; None if there is none. `tenant` None: of any tenant.

    Raises StoreUnavailable.
    """
    with context.metrics.time_script("touch"):
        return context.store.touch(job_id, tenant=tenant)


def read_job(context: DoorContext, job_id: str, tenant: str | None) -> JobView:
    """The job as it is now, which counts as a poll. Raises ApiError (404) if there is none, and StoreUnavailable."""
    view = find_job(context, job_id, tenant)
    if view is None:
        raise ApiError("job_not_found", f"no job {job_id[:64]!r}")
    return view


def erase_job(context: DoorContext, view: JobView) -> None:
    """Remove an ended job's text; a job that has not ended stays as it is. Raises StoreUnavailable."""
    with context.metrics.time_script("erase"):
        context.store.erase(view.id, tenant=view.tenant)


def list_jobs(context: DoorContext, tenant: str, *, status: str | None, limit: int, cursor: str | None) -> JobPage:
    """One page of the tenant's jobs, newest first. Raises StoreUnavailable."""
    return context.store.jobs(tenant, status=status, limit=limit, cursor=cursor)
