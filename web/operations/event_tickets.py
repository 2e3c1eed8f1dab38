"""Tickets at the door: one job's events for who has no key to send."""

from collections.abc import Callable

from shared.jobs.job import JobView
from web.http.api_errors import ApiError
from web.operations.callers import enabled
from web.operations.tenant_jobs import read_job
from web.runtime.context import DoorContext

#: A ticket outlives its job's deadline by as long as the stream of an ended job stays, in ms.
_EXTRA_MS = 60_000


def ticket_issuer(context: DoorContext) -> Callable[[JobView], str]:
    """Makes tickets of jobs, without the store: asked for before a job is offered, so that none is taken in vain.

    Raises StoreUnavailable.
    """
    sign = context.ticket_signer.signer()
    return lambda view: sign(view.id, view.deadline_at_ms + _EXTRA_MS)


def job_of_ticket(context: DoorContext, job_id: str, ticket: str) -> JobView:
    """The job that the ticket opens, noted as polled. Raises ApiError (401, 403, 404) and StoreUnavailable."""
    expires_ms = context.ticket_signer.expires_ms(ticket, job_id)
    if expires_ms is None:
        raise ApiError("invalid_ticket", f"the ticket does not open job {job_id[:64]!r}", param="ticket")
    view = read_job(context, job_id, None)
    if view.now_ms >= expires_ms:
        raise ApiError("invalid_ticket", f"the ticket for job {job_id!r} has expired", param="ticket")
    enabled(context, view.tenant)
    return view
