"""`/v1/jobs/{id}/events`: follow a job through server-sent events; closing the stream never cancels the job."""

import re
from collections.abc import Iterator

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.job import JobView
from web.api.job_json import job_json
from web.api.stream_format import frame
from web.http import shutdown
from web.http.api_errors import ApiError, invalid_field
from web.jobs.event_stream import (
    READER_CHECK_INTERVAL_S,
    JobEnded,
    JobRequeued,
    JobStarted,
    NothingNew,
    TextDelta,
    follow_job,
)
from web.jobs.tenant_jobs import job_of_ticket, read_job
from web.request.caller import current_caller, uses_ticket, watch_client
from web.request.open_requests import count_tenant
from web.request.responses import stream_response, with_comments
from web.runtime.context import DoorContext
from web.runtime.credentials.key_watch import ClientWatch
from web.runtime.current import current_context

bp = APIBlueprint("events", __name__, tag="Jobs")

#: How long a browser should wait before it reconnects after the stream has broken, in ms.
_RETRY_MS = 1_000
#: The third number is that of a text among those of one event of a job with several candidates.
_STREAM_ID = re.compile(r"0\Z|([0-9]{1,20})-([0-9]{1,20})(?:-([0-9]{1,20}))?\Z")
#: Redis stores each of the two numbers of a stream id in 64 bits. The hub reads the streams of all followers in this
#: process with one call, and a larger number would make that call fail for all of them.
_MAX_STREAM_NUMBER = 2**64 - 1


@bp.get("/v1/jobs/<job_id>/events")
@bp.doc(
    responses={
        200: "The events, as text/event-stream",
        401: "The API key is missing or not valid, or the ticket is not valid for this job",
        404: "This tenant has no such job",
    }
)
def events(job_id: str) -> Response:
    """Follow a job.

    Sends these server-sent events: queued, started, token and ended. To resume a broken stream, send the id of the last
    event as the header Last-Event-ID or as last_event_id in the query. A ticket in the query replaces the API key.
    """
    context = current_context()
    after = _last_event_id()
    if uses_ticket():
        view = job_of_ticket(context, job_id, request.args["ticket"])
        count_tenant(view.tenant)
    else:
        view = read_job(context, job_id, current_caller().tenant)
    client = watch_client(view.tenant if uses_ticket() else None)
    frames = _frames(context, view, after, client)
    return stream_response(frames)


def _last_event_id() -> str | None:
    header = request.headers.get("Last-Event-ID")
    name, text = ("Last-Event-ID", header) if header else ("last_event_id", request.args.get("last_event_id"))
    if text is None:
        return None
    match = _STREAM_ID.match(text)
    if match and all(int(number or 0) <= _MAX_STREAM_NUMBER for number in match.groups()):
        return text
    raise invalid_field(name, f"{name}={text[:60]!r} is not the id of an event")


def _frames(context: DoorContext, view: JobView, after: str | None, client: ClientWatch) -> Iterator[str]:
    yield f": penstock\nretry: {_RETRY_MS}\n\n"
    if after is None:
        yield frame("queued", job_json(view))
    items = follow_job(
        context,
        view,
        after=after or "0",
        stop=lambda: client.gone() or shutdown.requested.is_set(),
        check_interval_s=READER_CHECK_INTERVAL_S,
    )
    try:
        yield from with_comments(
            ("" if isinstance(item, NothingNew | JobRequeued) else item_frame(item) for item in items), context.clock
        )
        if client.key_problem is not None:
            yield _error_frame(client.key_problem)
    except ApiError as problem:
        yield _error_frame(problem)


def _error_frame(problem: ApiError) -> str:
    """Return the event for an error that occurs after the response's status line has been sent."""
    return frame("error", {"error": {"message": problem.message, "code": problem.code}})


def item_frame(item: JobStarted | TextDelta | JobEnded) -> str:
    """Return the frame of the server-sent event for one item."""
    if isinstance(item, JobStarted):
        return frame("started", item.fields, item.event_id)
    if isinstance(item, TextDelta):
        return frame("token", item.fields, item.event_id)
    return frame("ended", job_json(item.view), item.event_id)
