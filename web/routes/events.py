"""`/v1/jobs/{id}/events`: a job's story as server-sent events; a reader never cancels anything."""

import re
from collections.abc import Callable, Iterator

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.job import JobView
from web.api.job_json import job_json
from web.http import shutdown
from web.http.api_errors import ApiError, FieldError, invalid_value
from web.http.disconnect import watch_disconnect
from web.operations.event_stream import READER_REST_S, JobEnded, JobStarted, NothingNew, TextDelta, follow_job
from web.operations.event_tickets import job_of_ticket
from web.operations.request_caller import by_ticket, caller
from web.operations.sse import frame, stream_response, with_comments
from web.operations.tenant_jobs import read_job
from web.runtime.context import DoorContext
from web.runtime.current import current_door

bp = APIBlueprint("events", __name__, tag="Jobs")

#: How long a browser waits before it takes a broken stream up again, in ms.
_RETRY_MS = 1_000
_STREAM_ID = re.compile(r"0\Z|([0-9]{1,20})-([0-9]{1,20})\Z")
#: Redis keeps both numbers of a stream id in 64 bits; a larger one would fail the read that all followers share.
_LAST_NUMBER = 2**64 - 1


@bp.get("/v1/jobs/<job_id>/events")
@bp.doc(
    summary="Follow a job",
    description="Server-sent events: queued, started, token, ended. Resumable with Last-Event-ID, as a header or "
    "as last_event_id in the query. A ticket in the query opens it without a key.",
    responses={200: "text/event-stream", 401: "The ticket opens nothing", 404: "No such job of this tenant"},
)
def events(job_id: str) -> Response:
    """Tell the job's story from its beginning, or from where the reader left."""
    context = current_door()
    after = _last_event_id()
    view = (
        job_of_ticket(context, job_id, request.args["ticket"])
        if by_ticket()
        else read_job(context, job_id, caller().tenant)
    )
    gone = watch_disconnect(request.environ)
    told = _told(context, view, after, lambda: gone() or shutdown.requested.is_set())
    return stream_response(told)


def _last_event_id() -> str | None:
    header = request.headers.get("Last-Event-ID")
    name, text = ("Last-Event-ID", header) if header else ("last_event_id", request.args.get("last_event_id"))
    if text is None:
        return None
    match = _STREAM_ID.match(text)
    if match and all(int(number or 0) <= _LAST_NUMBER for number in match.groups()):
        return text
    raise invalid_value([FieldError(name, f"{name}={text[:60]!r} is none that an event had")])


def _told(context: DoorContext, view: JobView, after: str | None, stop: Callable[[], bool]) -> Iterator[str]:
    yield f": penstock\nretry: {_RETRY_MS}\n\n"
    if after is None:
        yield frame("queued", job_json(view))
    items = follow_job(context, view, after=after or "0", stop=stop, rest_s=READER_REST_S)
    try:
        yield from with_comments(("" if isinstance(item, NothingNew) else shown(item) for item in items), context.clock)
    except ApiError as problem:
        # The status line is long gone: the reader hears of it as an event.
        yield frame("error", {"error": {"message": problem.message, "code": problem.code}})


def shown(item: JobStarted | TextDelta | JobEnded) -> str:
    """An item as one event."""
    if isinstance(item, JobStarted):
        return frame("started", {"attempt": item.attempt}, item.event_id)
    if isinstance(item, TextDelta):
        return frame("token", {"text": item.text, "tokens": item.tokens}, item.event_id)
    return frame("ended", job_json(item.view), item.event_id)
