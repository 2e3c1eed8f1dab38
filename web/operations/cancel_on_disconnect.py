"""Serve calls that own their job: if the client disconnects, or its key ends, before the job does, it is canceled.

If such a call ends because this process stops, its job is not canceled.
"""

from collections.abc import Iterator
from itertools import chain

import structlog

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.job_json import has_ended
from web.http import shutdown
from web.http.api_errors import ApiError
from web.openai.chat_answers import job_end_error
from web.operations.event_stream import JobEnded, StreamItem, TextDelta, follow_job
from web.operations.long_poll import wait_until_ended
from web.operations.tenant_jobs import waiting_for_own_job
from web.runtime.context import DoorContext
from web.runtime.credentials.client_watch import ClientWatch

log = structlog.get_logger()

#: How long a call still waits for its job's end after the deadline has passed, in seconds. The store accepts a success
#: up to 1 s after the deadline (shared/lua/settle.lua), and the reaper may end an expired job 250 ms late.
GRACE_S = 2.0


def wait_for_result(
    context: DoorContext, view: JobView, deadline: RequestDeadline, client: ClientWatch
) -> JobView | ApiError:
    """Block until the job has ended; return the job if it succeeded, otherwise the error to send to the client.

    Raises StoreUnavailable if the store loses the job.
    """
    with waiting_for_own_job():
        view = wait_until_ended(context, view, deadline.deadline_ms / 1000 + GRACE_S, stop=client.gone)
    if not has_ended(view):
        cancel_unless_stopping(context, view, client=client)
        return no_end_error(view, client)
    return job_end_error(view) or view


def follow_from_first_text(
    context: DoorContext, view: JobView, deadline: RequestDeadline, client: ClientWatch
) -> Iterator[StreamItem] | ApiError:
    """Block until the job has its first text, then return its stream items.

    If the job ends without success before its first text, an error is returned instead. The response has not begun by
    then, so the error can still be sent with its HTTP status. Raises StoreUnavailable if the store loses the job in
    this time. If the caller of this function stops iterating before the job has ended, it must call
    `cancel_unless_stopping`.
    """
    until_s = context.clock.monotonic() + deadline.deadline_ms / 1000 + GRACE_S
    items = follow_job(context, view, stop=lambda: client.gone() or context.clock.monotonic() > until_s)
    with waiting_for_own_job():
        first = next((item for item in items if isinstance(item, TextDelta | JobEnded)), None)
    if first is None:
        cancel_unless_stopping(context, view, client=client)
        return no_end_error(view, client)
    problem = job_end_error(first.view) if isinstance(first, JobEnded) else None
    return problem or chain([first], items)


def cancel_unless_stopping(context: DoorContext, view: JobView, *, client: ClientWatch) -> None:
    """Cancel the job of a call that ended before the job did.

    While this process is stopping, the job is canceled only if its client has closed the connection.
    """
    if shutdown.requested.is_set() and not client.gone():
        return
    log.info("client.gone", job=view.id, tenant=view.tenant)
    cancel_when_possible(context, view)


def cancel_when_possible(context: DoorContext, view: JobView) -> None:
    """Cancel the job now or, if the store does not answer, as soon as the store answers again."""
    try:
        context.cancel(view)
    except StoreUnavailable:
        context.in_doubt.add(view.id)


def no_end_error(view: JobView, client: ClientWatch) -> ApiError:
    """Return the error for a call that ended before the door saw the end of its job.

    The client's key is no longer valid, or the client has disconnected, so that nobody receives the error, or the door
    has stopped waiting for the end.
    """
    return client.key_problem or ApiError("deadline_exceeded", f"the end of job {view.id} was not seen in time")
