"""Event tickets: let a client without an API key, such as a browser, follow the events of one job."""

from collections.abc import Callable

from shared.jobs.job import JobView
from web.http.api_errors import ApiError
from web.jobs.callers import enabled_policy
from web.jobs.tenant_jobs import read_job
from web.runtime.context import DoorContext

#: How long a ticket stays valid after its job's deadline, in ms. The store keeps a job's event stream for the same time
#: after the job has ended.
_VALID_AFTER_DEADLINE_MS = 60_000


def ticket_issuer(context: DoorContext) -> Callable[[JobView], str]:
    """Return a function that makes a ticket for a job without calling the store. Raises StoreUnavailable.

    Call `ticket_issuer` before the job is offered, so that no job has been admitted yet if StoreUnavailable is raised.
    """
    sign = context.ticket_signer.make_signer()
    return lambda view: sign(view.id, view.deadline_at_ms + _VALID_AFTER_DEADLINE_MS)


def job_of_ticket(context: DoorContext, job_id: str, ticket: str) -> JobView:
    """Return the job if the ticket is valid for it; the read counts as a poll of the job.

    Raises ApiError (401 for an invalid ticket, 403 for a disabled tenant, 404 for an unknown job) and StoreUnavailable.
    """
    expires_ms = context.ticket_signer.expires_ms(ticket, job_id)
    if expires_ms is None:
        raise ApiError("invalid_ticket", f"the ticket is not valid for job {job_id[:64]!r}", param="ticket")
    view = read_job(context, job_id, None)
    if view.now_ms >= expires_ms:
        raise ApiError("invalid_ticket", f"the ticket for job {job_id!r} has expired", param="ticket")
    enabled_policy(context, view.tenant)
    return view
