"""OpenAI's routes onto the same admission; the stock `openai` package works unchanged."""

import time
from collections.abc import Callable, Iterator

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.refusals import Yield
from web.http.api_errors import ApiError, error_response
from web.http.disconnect import watch_disconnect
from web.http.request import retry_attempt
from web.http.telemetry import traceparent
from web.openai.chat_answers import AnswerFormat, AnswerKind, end_problem, format_of
from web.openai.chat_schema import COMPLETION_MAX_TOKENS, ChatBody, CompletionBody
from web.operations.admission import GenerationRequest, offer
from web.operations.cancel_on_disconnect import (
    cancel_unless_stopping,
    follow_from_first_text,
    no_end_error,
    wait_for_result,
)
from web.operations.event_stream import JobStarted, NothingNew, StreamItem, TextDelta
from web.operations.idempotency import with_refusal_identity
from web.operations.request_caller import caller
from web.operations.request_deadline import read_deadline
from web.operations.responses import json_response, problem_response, yield_response
from web.operations.sse import data_frame, stream_response, with_comments
from web.runtime.context import DoorContext
from web.runtime.current import current_door

bp = APIBlueprint("openai", __name__, tag="OpenAI")

#: No model here has a birthday; the process's start does.
_BORN = int(time.time())


@bp.get("/v1/models")
@bp.doc(summary="Live models", responses={200: "The list"})
def models() -> Response:
    """Served names and aliases that this tenant may use, of models with a live worker."""
    names = current_door().pools.offered(caller().policy)
    return json_response({"object": "list", "data": [_model(name) for name in names]})


@bp.get("/v1/models/<path:name>")
@bp.doc(summary="One model", responses={200: "The model", 404: "Not served here"})
def model(name: str) -> Response:
    """A model by its served name or alias."""
    return json_response(_model(current_door().pools.resolve(name, caller().policy).name))


@bp.post("/v1/chat/completions")
@bp.input(ChatBody, arg_name="body")
@bp.doc(
    summary="Chat, plain or streaming",
    description="The connection owns the job: its close cancels it. Ends are errors here: expired 504, failed 500, "
    "canceled 409.",
    responses={200: "chat.completion, or chunks of it as server-sent events", 503: "Yield: come back after the hint"},
)
def chat(body: ChatBody) -> Response:
    """Answer a chat."""
    return _serve(body, "chat", current_door().settings.default_max_tokens)


@bp.post("/v1/completions")
@bp.input(CompletionBody, arg_name="body")
@bp.doc(
    summary="Continue a text, plain or streaming",
    description="As /v1/chat/completions; 16 tokens when the request names no max_tokens.",
    responses={200: "text_completion, or chunks of it as server-sent events", 503: "Yield: come back after the hint"},
)
def completions(body: CompletionBody) -> Response:
    """Continue a text."""
    return _serve(body, "completion", COMPLETION_MAX_TOKENS)


def _serve(body: ChatBody | CompletionBody, kind: AnswerKind, default_max_tokens: int) -> Response:
    context, who = current_door(), caller()
    deadline = read_deadline(context, who, body, "stream" if body.stream else "hold")
    ask = GenerationRequest(
        payload=body.payload(),
        deadline=deadline,
        model=body.model,
        max_tokens=body.most_tokens,
        default_max_tokens=default_max_tokens,
        attempt=retry_attempt(),
        traceparent=traceparent(),
        supersede_key=body.supersede_key,
        degrade=body.degrade,
    )
    verdict = offer(context, who, with_refusal_identity(ask, who.tenant))
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    elif body.stream:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        response = _stream(context, verdict.view, kind, deadline, include_usage=include_usage)
    else:
        response = _plain(context, verdict.view, kind, deadline)
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    return response


def _plain(context: DoorContext, view: JobView, kind: AnswerKind, deadline: RequestDeadline) -> Response:
    ended = wait_for_result(context, view, deadline, watch_disconnect(request.environ))
    return (
        problem_response(ended) if isinstance(ended, ApiError) else json_response(format_of(ended, kind).whole(ended))
    )


def _stream(
    context: DoorContext, view: JobView, kind: AnswerKind, deadline: RequestDeadline, *, include_usage: bool
) -> Response:
    """Chunks as they come."""
    gone = watch_disconnect(request.environ)
    story = follow_from_first_text(context, view, deadline, gone)
    if isinstance(story, ApiError):
        return problem_response(story)
    chunks = _chunks(story, format_of(view, kind), include_usage=include_usage)
    return stream_response(_told(context, view, chunks, gone))


def _told(context: DoorContext, view: JobView, chunks: Iterator[str], gone: Callable[[], bool]) -> Iterator[str]:
    """The chunks, and a comment where they are far apart; the job is canceled when its client goes before its end."""
    ended = False
    try:
        yield from with_comments(chunks, context.clock)
        ended = True
    except _EndNotSeen:
        yield _error(no_end_error(view))
    except _TornStream as torn:
        yield _error(torn.problem)
    except ApiError as problem:
        ended = True
        yield _error(problem)
    finally:
        if not ended:
            cancel_unless_stopping(context, view, gone=gone)


class _EndNotSeen(Exception):
    """The story stopped before its job ended."""


class _TornStream(Exception):
    """What was told cannot be continued."""

    def __init__(self, problem: ApiError) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _chunks(story: Iterator[StreamItem], shape: AnswerFormat, *, include_usage: bool) -> Iterator[str]:
    """Frames of chunks; "" while nothing happens.

    Raises ApiError for a job that did not succeed, _Torn when an attempt tells another text than the last,
    _Unseen when the story stops before the end.
    """
    blank = {"usage": None} if include_usage else {}
    if (opening := shape.first()) is not None:
        yield data_frame(opening | blank)
    # What the client has, and what the attempt under way has told: after a lost worker the same again.
    sent, running = "", ""
    for item in story:
        if isinstance(item, NothingNew):
            yield ""
        elif isinstance(item, JobStarted):
            running = ""
        elif isinstance(item, TextDelta):
            running += item.text
            new = _beyond(sent, running, shape)
            if new:
                sent = running
                yield data_frame(shape.text(new) | blank)
        else:
            yield from _ending(item.view, sent, shape, include_usage=include_usage, blank=blank)
            return
    raise _EndNotSeen


def _ending(
    view: JobView, sent: str, shape: AnswerFormat, *, include_usage: bool, blank: dict[str, None]
) -> Iterator[str]:
    problem = end_problem(view)
    if problem is not None:
        raise problem
    rest = _beyond(sent, view.text or "", shape) if view.text is not None else ""
    if rest:
        yield data_frame(shape.text(rest) | blank)
    yield data_frame(shape.last(view) | blank)
    if include_usage:
        yield data_frame(shape.usage_chunk(view))
    yield "data: [DONE]\n\n"


def _beyond(sent: str, text: str, shape: AnswerFormat) -> str:
    """What of `text` the client does not have yet."""
    if text.startswith(sent):
        return text[len(sent) :]
    if sent.startswith(text):
        return ""
    raise _TornStream(
        ApiError("job_failed", f"job {shape.job_id}: its worker was lost, and the next told another text")
    )


def _error(problem: ApiError) -> str:
    return data_frame(error_response(problem).body)


def _model(name: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": _BORN, "owned_by": "penstock"}
