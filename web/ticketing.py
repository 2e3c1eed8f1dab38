"""Tickets at the door: one job's events for who has no key to send."""

from collections.abc import Callable

from shared.job import JobView
from web.auth import enabled
from web.context import Door
from web.problems import Problem

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
    with here.metrics.script("touch"):
        view = here.store.touch(job_id)
    if view is None:
        raise Problem("job_not_found", f"no job {job_id[:64]!r}")
    if view.now_ms >= expires_ms:
        raise Problem("invalid_ticket", f"the ticket for job {job_id!r} has expired", param="ticket")
    enabled(here, view.tenant)
    return view
