"""A call that owns its job: when the call ends before the job, so does the job; unless it was we who stopped."""

from collections.abc import Callable, Iterator
from itertools import chain

import structlog

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.deadline import Patience
from web.api.job_json import has_ended
from web.http import shutdown
from web.http.api_errors import Problem
from web.openai.chat_answers import end_problem
from web.operations.event_stream import Finished, Item, Text, follow
from web.operations.long_poll import until_ended
from web.runtime.context import Door

log = structlog.get_logger()

#: A settle may arrive this long after the deadline and still be told (shared/lua/settle.lua), and reaping
#: may be 250 ms late.
GRACE_S = 2.0


def to_its_end(here: Door, view: JobView, patience: Patience, gone: Callable[[], bool]) -> JobView | Problem:
    """Hold this request until its job has succeeded; the error that it is instead, where it has not."""
    view = until_ended(here, view, patience.deadline_ms / 1000 + GRACE_S, stop=gone)
    if not has_ended(view):
        let_go(here, view, gone=gone)
        return no_end(view)
    return end_problem(view) or view


def from_its_first_text(
    here: Door, view: JobView, patience: Patience, gone: Callable[[], bool]
) -> Iterator[Item] | Problem:
    """The job's story, once there is text of it: an end without any is an error of its own, with a status.

    Who iterates calls `let_go` when it stops before the end.
    """
    until_s = here.clock.monotonic() + patience.deadline_ms / 1000 + GRACE_S
    story = follow(here, view, stop=lambda: gone() or here.clock.monotonic() > until_s)
    first = next((item for item in story if isinstance(item, Text | Finished)), None)
    if first is None:
        let_go(here, view, gone=gone)
        return no_end(view)
    problem = end_problem(first.view) if isinstance(first, Finished) else None
    return problem or chain([first], story)


def let_go(here: Door, view: JobView, *, gone: Callable[[], bool]) -> None:
    """Such a call is over and its job is not: cancel it, for its client has gone, or hears nothing any more.

    A process that stops cancels only where the client was seen to have gone by itself.
    """
    if shutdown.asked.is_set() and not gone():
        return
    log.info("client.gone", job=view.id, tenant=view.tenant)
    give_up(here, view)


def give_up(here: Door, view: JobView) -> None:
    """Cancel a job that nobody will hear of; when the store is back, if it is away."""
    try:
        here.cancel(view)
    except StoreUnavailable:
        here.doubts.add(view.id)


def no_end(view: JobView) -> Problem:
    """What is said when no end was seen: the client has gone (and hears nothing), or the store is away too long."""
    return Problem("deadline_exceeded", f"job {view.id}: no end of it was seen in time")
