"""`/v1/jobs/{id}/events`: a job's story as server-sent events; a reader never cancels anything."""

import json
import re
from collections.abc import Callable, Iterator

from apiflask import APIBlueprint
from flask import Response, request

from shared.job import JobView
from web import stopping
from web.auth import by_ticket
from web.context import Door, door
from web.following import Finished, Quiet, Started, Text, follow
from web.peer import watch
from web.present import job_json
from web.problems import Problem, Wrong, invalid
from web.routes.jobs import own_job
from web.ticketing import ticketed_job

bp = APIBlueprint("events", __name__, tag="Jobs")

#: Below the idle time-out of any proxy; also how a reader knows that the stream lives.
COMMENT_S = 5.0
#: A reader that goes cancels nothing, so there is no hurry to see it; hundreds of idle readers must cost little.
REST_S = 1.0
#: How long a browser waits before it takes a broken stream up again, in ms.
_RETRY_MS = 1_000
_STREAM_ID = re.compile(r"0\Z|([0-9]{1,20})-([0-9]{1,20})\Z")
#: Redis keeps both numbers of a stream id in 64 bits; a larger one would fail the read that all followers share.
_LAST_NUMBER = 2**64 - 1

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@bp.get("/v1/jobs/<job_id>/events")
@bp.doc(
    summary="Follow a job",
    description="Server-sent events: queued, started, token, ended. Resumable with Last-Event-ID, as a header or "
    "as last_event_id in the query. A ticket in the query opens it without a key.",
    responses={200: "text/event-stream", 401: "The ticket opens nothing", 404: "No such job of this tenant"},
)
def events(job_id: str) -> Response:
    """Tell the job's story from its beginning, or from where the reader left."""
    here = door()
    after = _last_event_id()
    view = ticketed_job(here, job_id, request.args["ticket"]) if by_ticket() else own_job(here, job_id)
    gone = watch(request.environ)
    told = _told(here, view, after, lambda: gone() or stopping.asked.is_set())
    return Response(told, mimetype="text/event-stream", headers=HEADERS)


def _last_event_id() -> str | None:
    header = request.headers.get("Last-Event-ID")
    name, text = ("Last-Event-ID", header) if header else ("last_event_id", request.args.get("last_event_id"))
    if text is None:
        return None
    match = _STREAM_ID.match(text)
    if match and all(int(number or 0) <= _LAST_NUMBER for number in match.groups()):
        return text
    raise invalid([Wrong(name, f"{name}={text[:60]!r} is none that an event had")])


def _told(here: Door, view: JobView, after: str | None, stop: Callable[[], bool]) -> Iterator[str]:
    yield f": penstock\nretry: {_RETRY_MS}\n\n"
    if after is None:
        yield frame("queued", job_json(view))
    wrote_s = here.clock.monotonic()
    try:
        for item in follow(here, view, after=after or "0", stop=stop, rest_s=REST_S):
            if not isinstance(item, Quiet):
                yield shown(item)
                wrote_s = here.clock.monotonic()
            elif here.clock.monotonic() - wrote_s >= COMMENT_S:
                yield ":\n\n"
                wrote_s = here.clock.monotonic()
    except Problem as problem:
        # The status line is long gone: the reader hears of it as an event.
        yield frame("error", {"error": {"message": problem.message, "code": problem.code}})


def shown(item: Started | Text | Finished) -> str:
    """An item as one event."""
    if isinstance(item, Started):
        return frame("started", {"attempt": item.attempt}, item.event_id)
    if isinstance(item, Text):
        return frame("token", {"text": item.text, "tokens": item.tokens}, item.event_id)
    return frame("ended", job_json(item.view), item.event_id)


def frame(kind: str, data: object, event_id: str = "") -> str:
    """One server-sent event. JSON escapes line ends, so that data is always one line."""
    name = f"id: {event_id}\n" if event_id else ""
    return f"{name}event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
