"""`/v1/responses`: plain, streaming or in the background, through the same admission; read, followed, canceled."""

from collections.abc import Callable, Iterator

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.job import JobView
from web.api.deadline import Patience
from web.api.job_json import job_headers
from web.api.refusals import Yield
from web.http import shutdown
from web.http.api_errors import Problem, Wrong, invalid
from web.http.disconnect import watch
from web.http.request import attempt
from web.http.telemetry import traceparent
from web.openai.chat_schema import unsupported
from web.openai.responses_answers import PREFIX, has_logprobs, is_response, response_json
from web.openai.responses_schema import ResponsesBody, included
from web.operations.admission import Ask, body_digest, offer
from web.operations.cancel_on_disconnect import from_its_first_text, let_go, no_end, to_its_end
from web.operations.event_stream import READER_REST_S, Finished, Item, follow
from web.operations.idempotency import known_again, refused_again
from web.operations.long_poll import look
from web.operations.request_caller import caller
from web.operations.request_deadline import patience_of
from web.operations.responses import json_response, problem_response, yield_response
from web.operations.responses_events import Events, Torn
from web.operations.sse import stream_response, with_comments
from web.operations.tenant_jobs import find_job
from web.runtime.context import Door
from web.runtime.current import door

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
    here, who = door(), caller()
    patience = patience_of(here, who, body, "poll" if body.background else "stream" if body.stream else "hold")
    ask = _ask(here, body, patience)
    known = known_again if body.background else refused_again
    verdict = offer(here, who, known(ask, who.tenant))
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    elif body.background:
        response = _readers_stream(here, verdict.view, None) if body.stream else _shown(verdict.view)
    elif body.stream:
        response = _owners_stream(here, verdict.view, patience)
    else:
        response = _plain(here, verdict.view, patience)
    response.headers["x-deadline-ms"] = str(patience.deadline_ms)
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
        raise invalid([Wrong("starting_after", f"starting_after={after} says where a stream goes on; add stream=true")])
    here = door()
    view = _own(here, response_id)
    for name in [*request.args.getlist("include"), *request.args.getlist("include[]")]:
        if included(name) and not has_logprobs(view):
            raise unsupported("include", f"{name} must be asked for when the response is made")
    return _readers_stream(here, view, after) if stream else _shown(view)


@bp.post("/v1/responses/<response_id>/cancel")
@bp.doc(
    summary="Cancel a response",
    description="As DELETE /v1/jobs/{id}; one that has ended stays as it ended.",
    responses={200: "response", 404: "No such response of this tenant"},
)
def cancel(response_id: str) -> Response:
    """Ask for the job's end."""
    here = door()
    view = _own(here, response_id)
    here.cancel(view)
    return _shown(look(here, view))


def _ask(here: Door, body: ResponsesBody, patience: Patience) -> Ask:
    return Ask(
        payload=body.payload(),
        patience=patience,
        model=body.model,
        max_tokens=body.max_output_tokens,
        default_max_tokens=here.settings.default_max_tokens,
        metadata=body.metadata or {},
        attempt=attempt(),
        traceparent=traceparent(),
        supersede_key=body.supersede_key,
        degrade=body.degrade,
        # Never that of a native body: the same key there and here are two requests.
        body_digest=body_digest({"responses": body.model_dump(exclude_none=True, exclude_unset=True)}),
        form=body.form(),
    )


def _own(here: Door, response_id: str) -> JobView:
    """The caller's response, noted as polled. Raises Problem when this tenant has none of that id."""
    view = None
    if response_id.startswith(PREFIX):
        view = find_job(here, response_id.removeprefix(PREFIX), caller().tenant)
    if view is None or not is_response(view):
        raise Problem("job_not_found", f"no response {response_id[:64]!r}")
    return view


def _shown(view: JobView) -> Response:
    return json_response(response_json(view), headers=job_headers(view))


def _plain(here: Door, view: JobView, patience: Patience) -> Response:
    ended = to_its_end(here, view, patience, watch(request.environ))
    return problem_response(ended) if isinstance(ended, Problem) else _shown(ended)


def _owners_stream(here: Door, view: JobView, patience: Patience) -> Response:
    gone = watch(request.environ)
    story = from_its_first_text(here, view, patience, gone)
    if isinstance(story, Problem):
        return problem_response(story)
    frames = _told(here, Events(view), view, story)
    return stream_response(_owned(here, view, frames, gone))


def _readers_stream(here: Door, view: JobView, after: int | None) -> Response:
    """Told at once, since the job lives on: a reader never cancels anything."""
    gone = watch(request.environ)
    story = follow(here, view, stop=lambda: gone() or shutdown.asked.is_set(), rest_s=READER_REST_S)
    return stream_response(_told(here, Events(view, after), view, story))


def _told(here: Door, events: Events, view: JobView, story: Iterator[Item]) -> Iterator[str]:
    """The frames, a comment where they are far apart, and why where they end before the response does."""
    ended = False

    def noting() -> Iterator[Item]:
        nonlocal ended
        for item in story:
            ended = isinstance(item, Finished)
            yield item

    try:
        yield from with_comments(events.told(noting()), here.clock)
        # A server that stops leaves the end to the next one: the stream can be taken up there.
        if not ended and not shutdown.asked.is_set():
            yield events.broken(no_end(view))
    except Torn as torn:
        yield torn.frame
    except Problem as problem:
        yield events.broken(problem)


def _owned(here: Door, view: JobView, frames: Iterator[str], gone: Callable[[], bool]) -> Iterator[str]:
    """The frames; the job is canceled unless its end was among them."""
    last = ""
    try:
        for frame in frames:
            last = frame if frame.startswith("event: ") else last
            yield frame
    finally:
        if not last.startswith(_ENDS):
            let_go(here, view, gone=gone)


_ENDS = tuple(f"event: response.{kind}\n" for kind in ("completed", "incomplete", "failed"))


def _yes(name: str) -> bool:
    text = request.args.get(name, "false").lower()
    if text not in {"true", "false", "1", "0"}:
        raise invalid([Wrong(name, f"{name}={text[:60]!r} is neither true nor false")])
    return text in {"true", "1"}


def _starting_after() -> int | None:
    text = request.args.get("starting_after")
    if text is None or (text.isascii() and text.isdigit() and len(text) < 12):
        return None if text is None else int(text)
    raise invalid([Wrong("starting_after", f"starting_after={text[:60]!r} is no sequence number that an event had")])
