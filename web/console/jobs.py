"""The console's page of a job, and the stream of its facts, its timeline and its answer."""

import threading
from collections.abc import Callable, Iterator

from flask import Response, current_app, render_template
from jinja2 import Environment
from markupsafe import escape

from shared.answer_parts import PartsReader
from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.store_fault import StoreFault
from web.api.candidates import best_view
from web.api.job_json import content_of, has_ended
from web.console.feed import current_feed
from web.console.guard import bp, not_found, page
from web.console.panels import render_fault, render_job
from web.console.streams import html_frame, stream, when_to_stop
from web.http.api_errors import ApiError
from web.jobs.callers import Caller
from web.jobs.event_stream import JobEnded, JobStarted, TextDelta, follow_job
from web.jobs.run_again import may_run_again
from web.openai.chat_answers import has_parts
from web.runtime.context import DoorContext
from web.runtime.current import current_context

#: The mark, in JobView.form, of a job that the console has submitted. Only such a job's answer is shown.
CONSOLE_FORM = "console"
_NO_JOB = "The id may be wrong, or the job's record may have expired."
#: Seconds between two reads of a job that has not ended.
_READ_S = 1.0


@page("/jobs/<job_id>")
def job_page(job_id: str) -> str | tuple[str, int]:
    """Return the page of a job."""
    context = current_context()
    try:
        view = read_quietly(context, job_id)
    except ApiError as error:
        return not_found(error.message, _NO_JOB)
    return render_template(
        "console/job.html",
        view=view,
        facts=render_job(current_app.jinja_env, view),
        has_answer=CONSOLE_FORM in view.form,
        may_run_again=may_run_again(context, Caller(view.tenant, "", context.credentials.policy(view.tenant)), view),
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
    view = context.of_job(job_id).store.touch(job_id, quiet=True)
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
    parts = PartsReader() if has_parts(view) else None
    for item in follow_job(context, view, stop=must_stop, check_interval_s=_READ_S):
        if isinstance(item, TextDelta):
            yield html_frame("text", str(escape(_content(item, parts))))
        elif isinstance(item, JobStarted) and not item.resumed:
            parts = PartsReader() if has_parts(view) else None
            yield html_frame("answer", "")
        elif isinstance(item, JobEnded):
            yield html_frame("answer", str(escape(content_of(best_view(item.view)) or "")))
        else:
            yield ""


def _content(new: TextDelta, parts: PartsReader | None) -> str:
    """Return the part of new text that is content of the first candidate, without reasoning and calls of tools."""
    if new.candidate:
        return ""
    if parts is None:
        return new.text
    return "".join(delta.text for delta in parts.feed(new.text) if delta.kind == "content")
