"""OpenAI's routes for chat completions, completions and models; the unmodified `openai` package works with them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from apiflask import APIBlueprint
from flask import Response, g

from shared.jobs.job import JobView
from web.api.candidates import choices_of
from web.api.deadline import RequestDeadline
from web.api.job_json import route_headers
from web.api.refusals import Yield
from web.http.api_errors import ApiError, error_response
from web.jobs.admission import offer
from web.jobs.cancel_on_disconnect import follow_from_first_text, wait_for_result
from web.jobs.event_stream import JobRequeued, JobStarted, NothingNew, OwnedItem, TextDelta
from web.jobs.generation import GenerationRequest
from web.jobs.openai_requests import text_request
from web.openai.chat_answers import AnswerFormat, AnswerKind, UsageChunks, answer_format, job_end_error
from web.openai.chat_schema import ChatBody, CompletionBody
from web.openai.forwarded_schema import ForwardedBody
from web.openai.tools_schema import ChatWithTools
from web.request.body import retry_attempt, return_ticket
from web.request.caller import current_caller, watch_client
from web.request.deadline import read_deadline
from web.request.idempotency import with_refusal_identity
from web.request.ignored_fields import name_ignored
from web.request.owned_streams import EndNotSeen, owning_frames, unsent_text, upstream_lost
from web.request.responses import json_response, list_response, problem_response, yield_response
from web.request.sse import data_frame, stream_response
from web.request.telemetry import traceparent
from web.routes.forwarding import forwarded_body
from web.runtime.context import DoorContext
from web.runtime.current import current_context

bp = APIBlueprint("openai", __name__, tag="OpenAI")

#: The `created` time of every model, which OpenAI's schema requires. Models in Penstock have no such time, so the start
#: of this process is used.
_MODEL_CREATED = int(time.time())


@bp.get("/v1/models")
@bp.doc(summary="List live models", responses={200: "The models that this tenant may use"})
def models() -> Response:
    """Return the names and aliases of all live models that this tenant may use, and the routes to them.

    The objects have the fields of OpenAI's API and of Anthropic's.
    """
    names = current_context().pools.visible_names(current_caller().policy)
    return list_response([_model_json(name) for name in names], has_more=False)


@bp.get("/v1/models/<path:name>")
@bp.doc(
    summary="Read one model",
    responses={200: "The model", 404: "No such model, or this tenant may not use it"},
)
def model(name: str) -> Response:
    """Return a model by its served name or alias, or a route by its name."""
    return json_response(_model_json(current_context().pools.resolve_target(name, current_caller().policy).name))


def _forwarded_first(kind: AnswerKind) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """Serve a request whose model an upstream serves before the decorated view's own body is validated."""

    def decorate(view: Callable[..., Response]) -> Callable[..., Response]:
        @wraps(view)
        def serve(**arguments: Any) -> Response:
            body = forwarded_body(kind)
            return view(**arguments) if body is None else _serve(body, kind)

        return serve

    return decorate


@bp.post("/v1/chat/completions")
@_forwarded_first("chat")
@bp.input(ChatWithTools, arg_name="body")
@bp.doc(
    summary="Create a chat completion, plain or streaming",
    description="Closing the connection cancels the job. If the job does not succeed, the answer is an error with "
    "status 504 if the job expired, 500 if it failed, or 409 if it was canceled.",
    responses={
        200: "A chat.completion, or its chunks as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    },
)
def chat(body: ChatWithTools) -> Response:
    """Generate the next message of a chat."""
    return _serve(body, "chat")


@bp.post("/v1/completions")
@_forwarded_first("completion")
@bp.input(CompletionBody, arg_name="body")
@bp.doc(
    summary="Create a completion, plain or streaming",
    description="Behaves like /v1/chat/completions. Without max_tokens, at most 16 tokens are generated.",
    responses={
        200: "A text_completion, or its chunks as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    },
)
def completions(body: CompletionBody) -> Response:
    """Generate the continuation of a text."""
    return _serve(body, "completion")


def _serve(body: ChatBody | CompletionBody | ForwardedBody, kind: AnswerKind) -> Response:
    context, caller = current_context(), current_caller()
    deadline = read_deadline(context, caller, body, "stream" if body.stream else "hold")
    generation = generation_request(context, body, kind, deadline)
    verdict = offer(context, caller, with_refusal_identity(generation, caller.tenant))
    if not isinstance(verdict, Yield):
        deadline = deadline.as_admitted(verdict.view.deadline_ms)
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    elif body.stream:
        usage_chunks: UsageChunks = body.stream_options.usage_chunks if body.stream_options else "none"
        response = _stream(context, verdict.view, answer_format(verdict.view, kind, usage_chunks), deadline)
    else:
        response = _plain(context, verdict.view, kind, deadline)
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    return response if isinstance(body, ForwardedBody) else name_ignored(context, body, response)


def generation_request(
    context: DoorContext, body: ChatBody | CompletionBody | ForwardedBody, kind: AnswerKind, deadline: RequestDeadline
) -> GenerationRequest:
    """Return the request for one answer to a chat or a prompt."""
    return replace(
        text_request(context, body, kind, deadline),
        attempt=retry_attempt(),
        return_ticket=return_ticket(body.return_ticket),
        traceparent=traceparent(),
        request_id=g.request_id,
    )


def _plain(context: DoorContext, view: JobView, kind: AnswerKind, deadline: RequestDeadline) -> Response:
    ended = wait_for_result(context, view, deadline, watch_client())
    if isinstance(ended, ApiError):
        return problem_response(ended)
    return json_response(answer_format(ended, kind).complete(ended), headers=route_headers(ended))


def _stream(context: DoorContext, view: JobView, answer: AnswerFormat, deadline: RequestDeadline) -> Response:
    client = watch_client()
    items = follow_from_first_text(context, view, deadline, client)
    if isinstance(items, ApiError):
        return problem_response(items)
    response = stream_response(owning_frames(context, view, _chunks(items, answer), client, error_frame=_error_frame))
    response.headers.extend(route_headers(view))
    return response


def _chunks(items: Iterator[OwnedItem], answer: AnswerFormat) -> Iterator[str]:
    """Yield one frame for each chunk, and "" for each NothingNew.

    Raises ApiError if the job did not succeed, TextDiverged if a new attempt generates text that differs from the text
    already sent, and EndNotSeen if the items stop before the job has ended.
    """
    yield from _frames(answer.role_chunks(), answer.usage_so_far(0))
    # By choice: `sent` is the text that the client has received. `running` is the text of the current attempt: if the
    # worker is lost and its tokens too, the next attempt generates the text again from its beginning.
    sent, running = [""] * answer.choices, [""] * answer.choices
    for item in items:
        if isinstance(item, NothingNew):
            yield ""
        elif isinstance(item, JobRequeued):
            # At once, because the upstream may be away for long.
            if any(sent) and answer.forwarded:
                raise upstream_lost(answer.job_id)
        elif isinstance(item, JobStarted):
            running = running if item.resumed else [""] * answer.choices
        elif isinstance(item, TextDelta):
            index = item.candidate or 0
            running[index] += item.text
            unsent = unsent_text(sent[index], running[index], answer.job_id)
            if unsent:
                sent[index] = running[index]
                yield from _frames(answer.text_chunks(unsent, index), answer.usage_so_far(item.tokens))
        else:
            yield from _last_chunks(item.view, sent, answer)
            return
    raise EndNotSeen


def _last_chunks(view: JobView, sent: list[str], answer: AnswerFormat) -> Iterator[str]:
    problem = job_end_error(view)
    if problem is not None:
        raise problem
    so_far = answer.usage_so_far(view.usage.completion_tokens if view.usage else 0)
    for index, choice in enumerate(choices_of(view)):
        text = choice.view.text
        unsent = "" if text is None else unsent_text(sent[index], text, answer.job_id)
        if unsent:
            yield from _frames(answer.text_chunks(unsent, index), so_far)
    yield from _frames([*answer.others_chunks(view), *answer.last_chunks(view)], so_far)
    if answer.usage_chunks != "none":
        yield data_frame(answer.usage_chunk(view))
    yield "data: [DONE]\n\n"


def _frames(chunks: list[dict[str, Any]], usage: dict[str, Any]) -> Iterator[str]:
    return (data_frame(chunk | usage) for chunk in chunks)


def _error_frame(problem: ApiError) -> str:
    return data_frame(error_response(problem).body)


def _model_json(name: str) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(_MODEL_CREATED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    of_anthropic = {"type": "model", "display_name": name, "created_at": created_at}
    longest = current_context().pools.max_model_len(name)
    of_vllm = {} if longest is None else {"max_model_len": longest}
    own = {"id": name, "object": "model", "created": _MODEL_CREATED, "owned_by": "penstock"}
    return own | of_anthropic | of_vllm
