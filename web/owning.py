"""A call that owns its job: when the call ends before the job, so does the job; unless it was we who stopped."""

from collections.abc import Callable

import structlog

from shared.errors import StoreUnavailable
from shared.job import JobView
from web import stopping
from web.context import Door
from web.problems import Problem

log = structlog.get_logger()

#: A settle may arrive this long after the deadline and still be told (shared/lua/settle.lua), and reaping
#: may be 250 ms late.
GRACE_S = 2.0


def let_go(here: Door, view: JobView, *, gone: Callable[[], bool]) -> None:
    """Such a call is over and its job is not: cancel it, for its client has gone, or hears nothing any more.

    A process that stops cancels only where the client was seen to have gone by itself.
    """
    if stopping.asked.is_set() and not gone():
        return
    log.info("client.gone", job=view.id, tenant=view.tenant)
    give_up(here, view)


def give_up(here: Door, view: JobView) -> None:
    """Cancel a job that nobody will hear of; when the store is back, if it is away."""
    try:
        with here.metrics.script("cancel"):
            here.store.cancel(view.id, tenant=view.tenant)
    except StoreUnavailable:
        here.doubts.add(view.id)


def no_end(view: JobView) -> Problem:
    """What is said when no end was seen: the client has gone (and hears nothing), or the store is away too long."""
    return Problem("deadline_exceeded", f"job {view.id}: no end of it was seen in time")
