"""The console's live streams: its panels, each whenever it has changed, and the facts, timeline and answer of a job."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from flask import Response, current_app, render_template, request
from jinja2 import Environment
from markupsafe import escape

from shared.clock import Clock
from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.store_fault import StoreFault
from web.api.job_json import content_of, has_ended
from web.api.stream_format import frame
from web.console.feed import ConsoleFeed, current_feed
from web.console.guard import bp, not_found, page
from web.console.panels import render_fault, render_job
from web.http import shutdown
from web.http.api_errors import ApiError
from web.http.disconnect import watch_disconnect
from web.jobs.event_stream import JobEnded, JobStarted, TextDelta, follow_job
from web.request.caller import watch_admin
from web.request.responses import stream_response, with_comments
from web.runtime.context import DoorContext
from web.runtime.current import current_context
from web.runtime.shared_answer import seldom

#: How long a browser should wait before it connects again, in ms.
_RETRY_MS = 2_000
#: A stream ends after this many seconds, and the browser connects again: streams that nobody looks at do not stay open.
_LONGEST_S = 900.0
#: Seconds between two checks that the operator's key still exists.
_CHECK_KEY_S = 5.0
#: At most this many bytes wait in the kernel for a viewer that reads nothing. When they are full, the connection is
#: closed after web.server.worker.SOCKET_TIMEOUT_S.
_SEND_BUFFER_BYTES = 16 * 1024


@bp.get("/live")
def live() -> Response:
    """Stream the panels."""
    feed = current_feed()
    return stream(feed, _panel_frames(feed, when_to_stop(current_context().clock)))


def stream(feed: ConsoleFeed, frames: Iterator[str]) -> Response:
    """Return a response that streams the frames to a new viewer. Raises ApiError (503) if there are too many."""
    connection = request.environ.get("gunicorn.socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    leave, clock = feed.join(), current_context().clock

    def all_frames() -> Iterator[str]:
        yield f"retry: {_RETRY_MS}\n\n"
        yield from with_comments(frames, clock)

    response = stream_response(all_frames())
    response.call_on_close(leave)
    return response


def when_to_stop(clock: Clock) -> Callable[[], bool]:
    """Return a function that returns whether the stream of this request must end. It is called about once a second."""
    has_left, is_admin, began_s = watch_disconnect(request.environ), watch_admin(), clock.monotonic()
    # While the store does not answer, the panels say so, and the key is checked again with the next look.
    has_lost_key = seldom(lambda: not is_admin(), _CHECK_KEY_S, clock)

    def must_stop() -> bool:
        is_over = shutdown.requested.is_set() or clock.monotonic() - began_s > _LONGEST_S
        return is_over or has_left() or has_lost_key()

    return must_stop


def _panel_frames(feed: ConsoleFeed, must_stop: Callable[[], bool]) -> Iterator[str]:
    yield frame("history", feed.points())
    shown: dict[str, str] = {}
    seen = 0
    while not must_stop():
        made = feed.next_pass(seen, timeout_s=1.0)
        if made is None:
            yield ""
            continue
        seen = made.number
        changed = {name: html for name, html in made.panels.items() if shown.get(name) != html}
        shown |= changed
        frames = [html_frame(name, html) for name, html in changed.items()]
        yield "".join(frames) + ("" if made.point is None else frame("point", made.point))


def html_frame(name: str, html: str) -> str:
    """Return the frame of an event whose data is HTML. A carriage return, which would end a line, becomes a space."""
    lines = html.replace("\r", " ").split("\n")
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


#: The mark, in JobView.form, of a job that the console has submitted. Only such a job's answer is shown.
CONSOLE_FORM = "console"
_NO_JOB = "The id may be wrong, or the job's record may have expired."
#: Seconds between two reads of a job that has not ended.
_READ_S = 1.0


@page("/jobs/<job_id>")
def job_page(job_id: str) -> str | tuple[str, int]:
    """Return the page of a job."""
    try:
        view = read_quietly(current_context(), job_id)
    except ApiError as error:
        return not_found(error, _NO_JOB)
    return render_template(
        "console/job.html",
        view=view,
        facts=render_job(current_app.jinja_env, view),
        has_answer=CONSOLE_FORM in view.form,
    )


@bp.get("/jobs/<job_id>/live")
def job_live(job_id: str) -> Response:
    """Stream the facts of a job, and its answer if the console has submitted it."""
    context = current_context()
    view = read_quietly(context, job_id)
    must_stop = when_to_stop(context.clock)
    return stream(current_feed(), _job_frames(context, view, current_app.jinja_env, must_stop))


def read_quietly(context: DoorContext, job_id: str) -> JobView:
    """Return a job of any tenant. The read is not a poll, so it keeps no job alive that its client has left.

    Raises ApiError (404) and StoreUnavailable.
    """
    view = context.store.touch(job_id, quiet=True)
    if view is None:
        raise ApiError("job_not_found", f"no job {job_id[:64]!r}")
    return view


def _job_frames(
    context: DoorContext, view: JobView, environment: Environment, must_stop: Callable[[], bool]
) -> Iterator[str]:
    """Yield the frames of a job until it has ended; then yield `end`, at which the page closes the stream."""
    shown, read_s = "", float("-inf")
    shown_fault: StoreFault | None = None
    texts = _texts(context, view, must_stop) if CONSOLE_FORM in view.form else _pauses(must_stop)
    try:
        for text in texts:
            yield text
            if context.clock.monotonic() - read_s >= _READ_S:
                read_s = context.clock.monotonic()
                view, fault = _read_if_possible(context, view)
                if fault is not shown_fault:
                    shown_fault = fault
                    yield html_frame("state", "" if fault is None else render_fault(environment, fault))
                facts = render_job(environment, view)
                if facts != shown:
                    shown = facts
                    yield html_frame("facts", facts)
                if has_ended(view) and CONSOLE_FORM not in view.form:
                    break
        view = read_quietly(context, view.id)
        yield html_frame("facts", render_job(environment, view))
    except (ApiError, StoreUnavailable):
        # The job's record has expired, or the browser connects again when the store answers.
        pass
    if has_ended(view):
        yield html_frame("end", "")


def _read_if_possible(context: DoorContext, view: JobView) -> tuple[JobView, StoreFault | None]:
    """Return the job as it is now; if the store cannot serve, as it was last, and why."""
    try:
        return read_quietly(context, view.id), None
    except StoreUnavailable as error:
        return view, error.fault


def _pauses(must_stop: Callable[[], bool]) -> Iterator[str]:
    pause = threading.Event()
    while not must_stop():
        yield ""
        pause.wait(_READ_S)


def _texts(context: DoorContext, view: JobView, must_stop: Callable[[], bool]) -> Iterator[str]:
    """Yield the frames of the answer's text, which begins anew when another attempt does, and is whole at the end."""
    yield html_frame("answer", "")
    for item in follow_job(context, view, stop=must_stop, check_interval_s=_READ_S):
        if isinstance(item, TextDelta):
            yield html_frame("text", str(escape(item.text)))
        elif isinstance(item, JobStarted) and not item.resumed:
            yield html_frame("answer", "")
        elif isinstance(item, JobEnded):
            yield html_frame("answer", str(escape(content_of(item.view) or "")))
        else:
            yield ""
