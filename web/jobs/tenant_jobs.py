"""Read, list and erase jobs in the store."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.store.replies import JobPage
from web.http.api_errors import ApiError
from web.runtime.context import DoorContext


def find_job(context: DoorContext, job_id: str, tenant: str | None) -> JobView | None:
    """Return the job as it is now, or None if the tenant has no such job; the read counts as a poll of the job.

    If `tenant` is None, the job may belong to any tenant. Raises StoreUnavailable.
    """
    with context.metrics.time_script("touch"):
        return context.store.touch(job_id, tenant=tenant)


def read_job(context: DoorContext, job_id: str, tenant: str | None) -> JobView:
    """Return the job as `find_job` does. Raises ApiError (404) instead of returning None, and StoreUnavailable."""
    view = find_job(context, job_id, tenant)
    if view is None:
        raise ApiError("job_not_found", f"no job {job_id[:64]!r}")
    return view


@contextmanager
def waiting_for_own_job() -> Iterator[None]:
    """Raise StoreUnavailable in place of the 404 that `read_job` raises.

    For a call that waits for the job that it has submitted. If the store loses such a job, for example in a failover to
    a replica that does not have it, the client has nothing to read by an id, and should send its request again.
    """
    try:
        yield
    except ApiError as error:
        if error.code != "job_not_found":
            raise
        raise StoreUnavailable("the store has lost a job for which its client waits") from error


def erase_job(context: DoorContext, view: JobView, *, form: str = "") -> None:
    """Remove the text of the job if the job has ended; otherwise do nothing. Raises StoreUnavailable.

    `form`, a JSON text, replaces the job's form, unless it is "".
    """
    with context.metrics.time_script("erase"):
        context.store.erase(view.id, tenant=view.tenant, form=form)


def list_jobs(context: DoorContext, tenant: str, *, status: str | None, limit: int, cursor: str | None) -> JobPage:
    """Return one page of the tenant's jobs, newest first. Raises StoreUnavailable."""
    return context.store.jobs(tenant, status=status, limit=limit, cursor=cursor)
