"""A call that owns its job: when the call ends before the job, so does the job; unless it was we who stopped."""

from collections.abc import Callable, Iterator
from itertools import chain

import structlog

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.job_json import has_ended
from web.http import shutdown
from web.http.api_errors import ApiError
from web.openai.chat_answers import end_problem
from web.operations.event_stream import JobEnded, StreamItem, TextDelta, follow_job
from web.operations.long_poll import wait_until_ended
from web.runtime.context import DoorContext

log = structlog.get_logger()

#: A settle may arrive this long after the deadline and still be told (shared/lua/settle.lua), and reaping
#: may be 250 ms late.
GRACE_S = 2.0


def wait_for_result(
    context: DoorContext, view: JobView, deadline: RequestDeadline, gone: Callable[[], bool]
) -> JobView | ApiError:
    """Hold this request until its job has succeeded; the error that it is instead, where it has not."""
    view = wait_until_ended(context, view, deadline.deadline_ms / 1000 + GRACE_S, stop=gone)
    if not has_ended(view):
        cancel_unless_stopping(context, view, gone=gone)
        return no_end_error(view)
    return end_problem(view) or view


def follow_from_first_text(
    context: DoorContext, view: JobView, deadline: RequestDeadline, gone: Callable[[], bool]
) -> Iterator[StreamItem] | ApiError:
    """The job's story, once there is text of it: an end without any is an error of its own, with a status.

    Who iterates calls `let_go` when it stops before the end.
    """
    until_s = context.clock.monotonic() + deadline.deadline_ms / 1000 + GRACE_S
    story = follow_job(context, view, stop=lambda: gone() or context.clock.monotonic() > until_s)
    first = next((item for item in story if isinstance(item, TextDelta | JobEnded)), None)
    if first is None:
        cancel_unless_stopping(context, view, gone=gone)
        return no_end_error(view)
    problem = end_problem(first.view) if isinstance(first, JobEnded) else None
    return problem or chain([first], story)


def cancel_unless_stopping(context: DoorContext, view: JobView, *, gone: Callable[[], bool]) -> None:
    """Such a call is over and its job is not: cancel it, for its client has gone, or hears nothing any more.

    A process that stops cancels only where the client was seen to have gone by itself.
    """
    if shutdown.requested.is_set() and not gone():
        return
    log.info("client.gone", job=view.id, tenant=view.tenant)
    cancel_when_possible(context, view)


def cancel_when_possible(context: DoorContext, view: JobView) -> None:
    """Cancel a job that nobody will hear of; when the store is back, if it is away."""
    try:
        context.cancel(view)
    except StoreUnavailable:
        context.in_doubt.add(view.id)


def no_end_error(view: JobView) -> ApiError:
    """What is said when no end was seen: the client has gone (and hears nothing), or the store is away too long."""
    return ApiError("deadline_exceeded", f"job {view.id}: no end of it was seen in time")
