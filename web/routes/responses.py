"""`/v1/responses`: plain, streaming or in the background, through the same admission; read, followed, canceled."""

from collections.abc import Callable, Iterator

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.job_json import job_headers
from web.api.refusals import Yield
from web.http import shutdown
from web.http.api_errors import ApiError, FieldError, invalid_value
from web.http.disconnect import watch_disconnect
from web.http.request import retry_attempt
from web.http.telemetry import traceparent
from web.openai.chat_schema import unsupported
from web.openai.responses_answers import PREFIX, has_logprobs, is_response, response_json
from web.openai.responses_schema import ResponsesBody, included
from web.operations.admission import GenerationRequest, body_digest, offer
from web.operations.cancel_on_disconnect import (
    cancel_unless_stopping,
    follow_from_first_text,
    no_end_error,
    wait_for_result,
)
from web.operations.event_stream import READER_REST_S, JobEnded, StreamItem, follow_job
from web.operations.idempotency import with_job_identity, with_refusal_identity
from web.operations.long_poll import refresh_job
from web.operations.request_caller import caller
from web.operations.request_deadline import read_deadline
from web.operations.responses import json_response, problem_response, yield_response
from web.operations.responses_events import ResponseEvents, TornStream
from web.operations.sse import stream_response, with_comments
from web.operations.tenant_jobs import find_job
from web.runtime.context import DoorContext
from web.runtime.current import current_door

bp = APIBlueprint("responses", __name__, tag="OpenAI")


@bp.post("/v1/responses")
@bp.input(ResponsesBody, arg_name="body")
@bp.doc(
    summary="Answer an input, plain, streaming or in the background",
    description="The connection owns the job, and its close cancels it, unless background is true. Ends are errors "
    "here as on /v1/chat/completions; in the background they are the response's status.",
    responses={200: "response, or its events as server-sent events", 503: "Yield: come back after the hint"},
)
def create(body: ResponsesBody) -> Response:
    """Offer a job and answer as the body asks."""
    context, who = current_door(), caller()
    deadline = read_deadline(context, who, body, "poll" if body.background else "stream" if body.stream else "hold")
    ask = _ask(context, body, deadline)
    known = with_job_identity if body.background else with_refusal_identity
    verdict = offer(context, who, known(ask, who.tenant))
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    elif body.background:
        response = _readers_stream(context, verdict.view, None) if body.stream else _shown(verdict.view)
    elif body.stream:
        response = _owners_stream(context, verdict.view, deadline)
    else:
        response = _plain(context, verdict.view, deadline)
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    return response


@bp.get("/v1/responses/<response_id>")
@bp.doc(
    summary="Read a response, or take its stream up",
    description="Counts as a poll. ?stream=true tells its events; starting_after=N those after this sequence number.",
    responses={
        200: "response, or its events as server-sent events",
        400: "`include` names what is not served, or was not asked for when the response was made",
        404: "No such response of this tenant",
    },
)
def read(response_id: str) -> Response:
    """The response as it is, or its story."""
    stream, after = _yes("stream"), _starting_after()
    if after is not None and not stream:
        raise invalid_value(
            [FieldError("starting_after", f"starting_after={after} says where a stream goes on; add stream=true")]
        )
    context = current_door()
    view = _own(context, response_id)
    for name in [*request.args.getlist("include"), *request.args.getlist("include[]")]:
        if included(name) and not has_logprobs(view):
            raise unsupported("include", f"{name} must be asked for when the response is made")
    return _readers_stream(context, view, after) if stream else _shown(view)


@bp.post("/v1/responses/<response_id>/cancel")
@bp.doc(
    summary="Cancel a response",
    description="As DELETE /v1/jobs/{id}; one that has ended stays as it ended.",
    responses={200: "response", 404: "No such response of this tenant"},
)
def cancel(response_id: str) -> Response:
    """Ask for the job's end."""
    context = current_door()
    view = _own(context, response_id)
    context.cancel(view)
    return _shown(refresh_job(context, view))


def _ask(context: DoorContext, body: ResponsesBody, deadline: RequestDeadline) -> GenerationRequest:
    return GenerationRequest(
        payload=body.payload(),
        deadline=deadline,
        model=body.model,
        max_tokens=body.max_output_tokens,
        default_max_tokens=context.settings.default_max_tokens,
        metadata=body.metadata or {},
        attempt=retry_attempt(),
        traceparent=traceparent(),
        supersede_key=body.supersede_key,
        degrade=body.degrade,
        # Never that of a native body: the same key there and here are two requests.
        body_digest=body_digest({"responses": body.model_dump(exclude_none=True, exclude_unset=True)}),
        form=body.form(),
    )


def _own(context: DoorContext, response_id: str) -> JobView:
    """The caller's response, noted as polled. Raises ApiError when this tenant has none of that id."""
    view = None
    if response_id.startswith(PREFIX):
        view = find_job(context, response_id.removeprefix(PREFIX), caller().tenant)
    if view is None or not is_response(view):
        raise ApiError("job_not_found", f"no response {response_id[:64]!r}")
    return view


def _shown(view: JobView) -> Response:
    return json_response(response_json(view), headers=job_headers(view))


def _plain(context: DoorContext, view: JobView, deadline: RequestDeadline) -> Response:
    ended = wait_for_result(context, view, deadline, watch_disconnect(request.environ))
    return problem_response(ended) if isinstance(ended, ApiError) else _shown(ended)


def _owners_stream(context: DoorContext, view: JobView, deadline: RequestDeadline) -> Response:
    gone = watch_disconnect(request.environ)
    story = follow_from_first_text(context, view, deadline, gone)
    if isinstance(story, ApiError):
        return problem_response(story)
    frames = _told(context, ResponseEvents(view), view, story)
    return stream_response(_owned(context, view, frames, gone))


def _readers_stream(context: DoorContext, view: JobView, after: int | None) -> Response:
    """Told at once, since the job lives on: a reader never cancels anything."""
    gone = watch_disconnect(request.environ)
    story = follow_job(context, view, stop=lambda: gone() or shutdown.requested.is_set(), rest_s=READER_REST_S)
    return stream_response(_told(context, ResponseEvents(view, after), view, story))


def _told(context: DoorContext, events: ResponseEvents, view: JobView, story: Iterator[StreamItem]) -> Iterator[str]:
    """The frames, a comment where they are far apart, and why where they end before the response does."""
    ended = False

    def noting() -> Iterator[StreamItem]:
        nonlocal ended
        for item in story:
            ended = isinstance(item, JobEnded)
            yield item

    try:
        yield from with_comments(events.told(noting()), context.clock)
        # A server that stops leaves the end to the next one: the stream can be taken up there.
        if not ended and not shutdown.requested.is_set():
            yield events.broken(no_end_error(view))
    except TornStream as torn:
        yield torn.frame
    except ApiError as problem:
        yield events.broken(problem)


def _owned(context: DoorContext, view: JobView, frames: Iterator[str], gone: Callable[[], bool]) -> Iterator[str]:
    """The frames; the job is canceled unless its end was among them."""
    last = ""
    try:
        for frame in frames:
            last = frame if frame.startswith("event: ") else last
            yield frame
    finally:
        if not last.startswith(_ENDS):
            cancel_unless_stopping(context, view, gone=gone)


_ENDS = tuple(f"event: response.{kind}\n" for kind in ("completed", "incomplete", "failed"))


def _yes(name: str) -> bool:
    text = request.args.get(name, "false").lower()
    if text not in {"true", "false", "1", "0"}:
        raise invalid_value([FieldError(name, f"{name}={text[:60]!r} is neither true nor false")])
    return text in {"true", "1"}


def _starting_after() -> int | None:
    text = request.args.get("starting_after")
    if text is None or (text.isascii() and text.isdigit() and len(text) < 12):
        return None if text is None else int(text)
    raise invalid_value(
        [FieldError("starting_after", f"starting_after={text[:60]!r} is no sequence number that an event had")]
    )
