"""Read, list and erase jobs in the store, wait for their ends, and issue tickets for their events."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.store.replies import JobPage
from web.api.job_json import has_ended
from web.http import shutdown
from web.http.api_errors import ApiError
from web.http.disconnect import CHECK_INTERVAL_S
from web.jobs.callers import enabled_policy
from web.runtime.context import DoorContext
from web.runtime.event_hub import Follower


def find_job(context: DoorContext, job_id: str, tenant: str | None) -> JobView | None:
    """Return the job as it is now, or None if the tenant has no such job; the read counts as a poll of the job.

    If `tenant` is None, the job may belong to any tenant. Raises StoreUnavailable.
    """
    with context.metrics.time_script("touch"):
        return context.of_job(job_id).store.touch(job_id, tenant=tenant)


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
        context.of_job(view.id).store.erase(view.id, tenant=view.tenant, form=form)


def list_jobs(context: DoorContext, tenant: str, *, status: str | None, limit: int, cursor: str | None) -> JobPage:
    """Return one page of the tenant's jobs, newest first; with several cells, cell after cell. Raises StoreUnavailable.

    The tenant may have jobs in cells in which it no longer lives. Of those, one that is away is left out.
    """
    homes, jobs = context.cells.of_tenant(tenant), list[JobView]()
    cells = [*homes, *(other for other in context.cells.all() if other not in homes)]
    if cursor is not None:
        begin = context.of_job(cursor)
        cells = cells[cells.index(begin) :] if begin in cells else []
    for cell in cells:
        if cell not in homes and context.cells.is_away(cell):
            continue
        try:
            page = cell.store.jobs(tenant, status=status, limit=limit - len(jobs), cursor=cursor)
        except StoreUnavailable:
            if cell in homes:
                raise
            context.cells.note_away(cell)
            continue
        jobs += page.jobs
        if page.cursor is not None:
            return JobPage(jobs, page.cursor)
        cursor = None
    return JobPage(jobs, None)


#: The longest time for which `Prefer: wait` and `?wait_ms` block a call, in ms. Common proxies close a connection that
#: is idle for longer than this.
LONGEST_WAIT_MS = 60_000
#: How often a call that waits for a job or follows it reads the job, in seconds: a job with a poll grace, which is
#: canceled unless it is read more often than the shortest grace that web/jobs/new_job.py sets, and any other job. Ends
#: normally arrive as events. The read finds one whose event is missing, because the stream has expired or another
#: program has spoiled it.
TOUCH_S, REFRESH_INTERVAL_S = 1.0, 5.0


def wait_until_ended(
    context: DoorContext, view: JobView, wait_s: float, *, stop: Callable[[], bool] = shutdown.requested.is_set
) -> JobView:
    """Block until the job has ended, `wait_s` has passed or `stop` returns True; return the job as last read.

    If the store stops answering, this function keeps waiting: the job is already admitted, so the client must not
    receive a refusal. Raises ApiError if the store no longer has the job, for example because the store has restarted
    without its data.
    """
    if has_ended(view) or wait_s <= 0:
        return view
    until_s = context.clock.monotonic() + wait_s
    with context.of_job(view.id).event_hub.follow(view.id) as follower:
        if follower.behind:
            # Somebody else follows the job, and its end may have been read before. All others get every event.
            view = _refresh_if_possible(context, view, refresh_job)
        sees_end = False
        while not has_ended(view) and not stop():
            left_s = until_s - context.clock.monotonic()
            if left_s <= 0:
                break
            # After the event, the loop comes here again only if the store did not answer.
            interval_s = CHECK_INTERVAL_S if sees_end else refresh_interval_s(view)
            sees_end = _has_seen_end(context, follower, min(left_s, interval_s), stop) or sees_end
            view = _refresh_if_possible(context, view, read_end if sees_end else refresh_job)
    return view


def refresh_interval_s(view: JobView) -> float:
    """Return how often a call that waits for or follows the job has to read it, in seconds."""
    return TOUCH_S if view.poll_grace_ms else REFRESH_INTERVAL_S


def _refresh_if_possible(
    context: DoorContext, view: JobView, read: Callable[[DoorContext, JobView], JobView]
) -> JobView:
    try:
        return read(context, view)
    except StoreUnavailable:
        return view


def read_end(context: DoorContext, view: JobView) -> JobView:
    """Read a job again whose `ended` event was seen, and return it. Raises as `refresh_job` does."""
    return context.of_job(view.id).store.ended(view.id, tenant=view.tenant) or refresh_job(context, view)


def refresh_job(context: DoorContext, view: JobView) -> JobView:
    """Read the job again and return it; the read counts as a poll of the job."""
    return read_job(context, view.id, view.tenant)


def _has_seen_end(context: DoorContext, follower: Follower, wait_s: float, stop: Callable[[], bool]) -> bool:
    """Block until the `ended` event arrives, `stop` returns True or `wait_s` has passed; return whether it arrived."""
    until_s = context.clock.monotonic() + wait_s
    while (left_s := until_s - context.clock.monotonic()) > 0:
        event = follower.next(min(left_s, CHECK_INTERVAL_S))
        if event is not None and event[1].get("type") == "ended":
            return True
        if stop():
            break
    return False


#: How long a ticket stays valid after its job's deadline, in ms. The store keeps a job's event stream for the same time
#: after the job has ended.
_VALID_AFTER_DEADLINE_MS = 60_000


def ticket_issuer(context: DoorContext) -> Callable[[JobView], str]:
    """Return a function that makes a ticket for a job without calling the store of `context`. Raises StoreUnavailable.

    Call `ticket_issuer` before the job is offered, so that no job has been admitted yet if StoreUnavailable is raised.
    """
    sign = context.ticket_signer.make_signer()

    def issue(view: JobView) -> str:
        # A job that was spilled needs the secret of its own cell, which has just admitted it.
        home = context.of_job(view.id)
        sign_there = sign if home is context else home.ticket_signer.make_signer()
        return sign_there(view.id, view.deadline_at_ms + _VALID_AFTER_DEADLINE_MS)

    return issue


def job_of_ticket(context: DoorContext, job_id: str, ticket: str) -> JobView:
    """Return the job if the ticket is valid for it; the read counts as a poll of the job.

    Raises ApiError (401 for an invalid ticket, 403 for a disabled tenant, 404 for an unknown job) and StoreUnavailable.
    """
    expires_ms = context.of_job(job_id).ticket_signer.expires_ms(ticket, job_id)
    if expires_ms is None:
        raise ApiError("invalid_ticket", f"the ticket is not valid for job {job_id[:64]!r}", param="ticket")
    view = read_job(context, job_id, None)
    if view.now_ms >= expires_ms:
        raise ApiError("invalid_ticket", f"the ticket for job {job_id!r} has expired", param="ticket")
    enabled_policy(context, view.tenant)
    return view
