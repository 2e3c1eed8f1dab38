"""A tenant's own jobs, as the store holds them: read, listed, erased."""

from shared.jobs.job import JobView
from shared.store.replies import JobPage
from web.http.api_errors import Problem
from web.runtime.context import Door


def find_job(here: Door, job_id: str, tenant: str | None) -> JobView | None:
    """The job as it is now, which counts as a poll; None if there is none. `tenant` None: of any tenant.

    Raises StoreUnavailable.
    """
    with here.metrics.script("touch"):
        return here.store.touch(job_id, tenant=tenant)


def read_job(here: Door, job_id: str, tenant: str | None) -> JobView:
    """The job as it is now, which counts as a poll. Raises Problem (404) if there is none, and StoreUnavailable."""
    view = find_job(here, job_id, tenant)
    if view is None:
        raise Problem("job_not_found", f"no job {job_id[:64]!r}")
    return view


def erase_job(here: Door, view: JobView) -> None:
    """Remove an ended job's text; a job that has not ended stays as it is. Raises StoreUnavailable."""
    with here.metrics.script("erase"):
        here.store.erase(view.id, tenant=view.tenant)


def list_jobs(here: Door, tenant: str, *, status: str | None, limit: int, cursor: str | None) -> JobPage:
    """One page of the tenant's jobs, newest first. Raises StoreUnavailable."""
    return here.store.jobs(tenant, status=status, limit=limit, cursor=cursor)
