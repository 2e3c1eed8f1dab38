"""Tickets at the door: one job's events for who has no key to send."""

from collections.abc import Callable

from shared.jobs.job import JobView
from web.http.api_errors import Problem
from web.operations.callers import enabled
from web.operations.tenant_jobs import read_job
from web.runtime.context import Door

#: A ticket outlives its job's deadline by as long as the stream of an ended job stays, in ms.
_EXTRA_MS = 60_000


def issuer(here: Door) -> Callable[[JobView], str]:
    """Makes tickets of jobs, without the store: asked for before a job is offered, so that none is taken in vain.

    Raises StoreUnavailable.
    """
    sign = here.tickets.signer()
    return lambda view: sign(view.id, view.deadline_at_ms + _EXTRA_MS)


def ticketed_job(here: Door, job_id: str, ticket: str) -> JobView:
    """The job that the ticket opens, noted as polled. Raises Problem (401, 403, 404) and StoreUnavailable."""
    expires_ms = here.tickets.expires_ms(ticket, job_id)
    if expires_ms is None:
        raise Problem("invalid_ticket", f"the ticket does not open job {job_id[:64]!r}", param="ticket")
    view = read_job(here, job_id, None)
    if view.now_ms >= expires_ms:
        raise Problem("invalid_ticket", f"the ticket for job {job_id!r} has expired", param="ticket")
    enabled(here, view.tenant)
    return view
