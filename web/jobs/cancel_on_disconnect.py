"""Serve calls that own their job: if the client disconnects, or its key ends, before the job does, it is canceled.

While this process stops, such a call continues as long as a worker runs its job, or may claim it. Otherwise its client
is told at once that the server stops, and the job is canceled, so that the client can send its request again. If the
call is cut off at last, its job is not canceled.
"""

from collections.abc import Callable, Iterator
from itertools import chain

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.jobs.states import JobState
from shared.log import get_logger
from web.api.deadline import RequestDeadline
from web.api.job_json import has_ended
from web.api.refusals import RESTART_HINT_MS, retry_headers
from web.http import shutdown
from web.http.api_errors import ApiError
from web.jobs.event_stream import JobEnded, StreamItem, TextDelta, follow_job
from web.jobs.snapshots import read_readiness
from web.jobs.tenant_jobs import refresh_job, wait_until_ended, waiting_for_own_job
from web.openai.chat_answers import job_end_error
from web.runtime.context import DoorContext
from web.runtime.credentials.key_watch import ClientWatch
from web.runtime.shared_answer import seldom

log = get_logger()

#: How long a call still waits for its job's end after the deadline has passed, in seconds. The store accepts a success
#: up to 1 s after the deadline (shared/lua/settle.lua), and the reaper may end an expired job 250 ms late.
GRACE_S = 2.0
#: How often a call looks, while this process stops, whether a worker may still start its job, in seconds.
_LOOK_S = 1.0


def early_end(context: DoorContext, view: JobView, client: ClientWatch) -> Callable[[], bool]:
    """Return a function that returns whether a call must end before its job.

    It must if its client is gone, or if no worker will start the job: it is queued, and no live worker claims jobs.
    """
    is_left_behind = False

    def look() -> bool:
        if read_readiness(context).jobs_start:
            return False
        # Read after the workers: one that drains now may have claimed the job until then.
        return refresh_job(context, view).state is JobState.QUEUED

    look_seldom = seldom(look, _LOOK_S, context.clock)

    def is_due() -> bool:
        nonlocal is_left_behind
        is_left_behind = is_left_behind or (shutdown.requested.is_set() and look_seldom())
        return is_left_behind or client.gone()

    return is_due


def wait_for_result(
    context: DoorContext, view: JobView, deadline: RequestDeadline, client: ClientWatch
) -> JobView | ApiError:
    """Block until the job has ended; return the job if it succeeded, otherwise the error to send to the client.

    Raises StoreUnavailable if the store loses the job.
    """
    with waiting_for_own_job():
        must_end = early_end(context, view, client)
        view = wait_until_ended(context, view, deadline.deadline_ms / 1000 + GRACE_S, stop=must_end)
    if not has_ended(view):
        return give_up(context, view, client)
    return job_end_error(view) or view


def follow_from_first_text(
    context: DoorContext, view: JobView, deadline: RequestDeadline, client: ClientWatch
) -> Iterator[StreamItem] | ApiError:
    """Block until the job has its first text, then return its stream items.

    If the job ends without success before its first text, an error is returned instead. The response has not begun by
    then, so the error can still be sent with its HTTP status. Raises StoreUnavailable if the store loses the job in
    this time. If the items stop before the job has ended, or the caller stops iterating, the caller must call `give_up`
    or `cancel_unless_stopping`.
    """
    until_s = context.clock.monotonic() + deadline.deadline_ms / 1000 + GRACE_S
    must_end = early_end(context, view, client)
    items = follow_job(context, view, stop=lambda: must_end() or context.clock.monotonic() > until_s)
    with waiting_for_own_job():
        first = next((item for item in items if isinstance(item, TextDelta | JobEnded)), None)
    if first is None:
        return give_up(context, view, client)
    problem = job_end_error(first.view) if isinstance(first, JobEnded) else None
    return problem or chain([first], items)


def give_up(context: DoorContext, view: JobView, client: ClientWatch) -> ApiError:
    """Cancel the job of a call that ends before the job, and return the error for its client, if that still listens."""
    log.info("client.gone" if client.gone() else "call.given_up", job=view.id, tenant=view.tenant)
    cancel_when_possible(context, view)
    return no_end_error(view, client)


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
        context.of_job(view.id).in_doubt.add(view.id)


def no_end_error(view: JobView, client: ClientWatch) -> ApiError:
    """Return the error for a call that ended before the door saw the end of its job.

    The client's key is no longer valid, or the client has disconnected, so that nobody receives the error, or the door
    has stopped waiting for the end: because the door itself stops, or because the deadline has passed.
    """
    if client.key_problem is not None:
        return client.key_problem
    if shutdown.requested.is_set():
        message = f"the server is stopping, and no worker will start job {view.id}; send the request again"
        return ApiError("draining", message, headers={"x-should-retry": "true"} | retry_headers(RESTART_HINT_MS))
    return ApiError("deadline_exceeded", f"the end of job {view.id} was not seen in time")
