"""Anthropic's routes for messages; the unmodified `anthropic` package works with them."""

from collections.abc import Iterator
from dataclasses import replace

from apiflask import APIBlueprint
from flask import Response, g

from shared.jobs.job import JobView
from web.anthropic.error_shape import ROUTES, anthropic_error
from web.anthropic.message_answers import message_json
from web.anthropic.message_events import PING, Event, MessageEvents
from web.anthropic.messages_schema import CountTokensBody, MessagesBody
from web.api.deadline import RequestDeadline
from web.api.job_json import route_headers
from web.api.refusals import Yield
from web.http.api_errors import ApiError, error_response
from web.jobs.admission import offer
from web.jobs.cancel_on_disconnect import follow_from_first_text, wait_for_result
from web.jobs.event_stream import JobRequeued, JobStarted, NothingNew, OwnedItem, TextDelta
from web.jobs.generation import GenerationRequest
from web.openai.chat_answers import job_end_error
from web.openai.forwarded_schema import ForwardedBody
from web.openai.tools_schema import ChatWithTools
from web.request.caller import current_caller, watch_client
from web.request.deadline import read_deadline
from web.request.idempotency import with_refusal_identity
from web.request.ignored_fields import name_ignored
from web.request.owned_streams import EndNotSeen, owning_frames, unsent_text, upstream_lost
from web.request.responses import json_response, problem_response, yield_response
from web.request.sse import frame, stream_response
from web.routes.openai import generation_request
from web.runtime.context import DoorContext
from web.runtime.current import current_context
from web.runtime.model_pools import FoundRoute

bp = APIBlueprint(ROUTES, __name__, tag="Anthropic")


@bp.after_request
def _name_request(response: Response) -> Response:
    """Add the header in which Anthropic's clients look for the request's id."""
    response.headers["request-id"] = g.request_id
    return response


@bp.post("/v1/messages")
@bp.input(MessagesBody, arg_name="body")
@bp.doc(
    summary="Create a message, plain or streaming",
    description="Behaves like /v1/chat/completions, in the form of Anthropic's API. Closing the connection cancels the "
    "job.",
    responses={
        200: "A message, or its events as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    },
)
def create(body: MessagesBody) -> Response:
    """Generate the next message of a conversation."""
    context, caller = current_context(), current_caller()
    chat = _chat(context, body)
    deadline = read_deadline(context, caller, chat, "stream" if body.stream else "hold")
    generation = _as_message(generation_request(context, chat, "chat", deadline))
    verdict = offer(context, caller, with_refusal_identity(generation, caller.tenant))
    if not isinstance(verdict, Yield):
        deadline = deadline.as_admitted(verdict.view.deadline_ms)
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    elif body.stream:
        response = _stream(context, verdict.view, deadline)
    else:
        response = _plain(context, verdict.view, deadline)
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    return name_ignored(context, body, response)


@bp.post("/v1/messages/count_tokens")
@bp.input(CountTokensBody, arg_name="body")
@bp.doc(
    summary="Estimate the tokens of a message's prompt",
    description="The door has no tokenizer: it estimates the number from the length of the texts and from what the "
    "workers of the model have measured. No job is created.",
    responses={200: "The estimated number of tokens"},
)
def count_tokens(body: CountTokensBody) -> Response:
    """Estimate how many tokens the prompt of a message has."""
    context = current_context()
    target = context.pools.resolve_target(body.model, current_caller().policy)
    payload = _chat(context, body).payload()
    models = target.models if isinstance(target, FoundRoute) else (target,)
    response = json_response({"input_tokens": max(model.estimate(payload) for model in models)})
    return name_ignored(context, body, response)


def _chat(context: DoorContext, body: CountTokensBody) -> ChatWithTools | ForwardedBody:
    """Return the body as a chat for the model that it names: for an upstream, or for our own engine.

    A route with other pools too is one of upstreams only for bodies that our own engine could not serve. Raises
    ApiError and StoreUnavailable.
    """
    target = context.pools.resolve_target(body.model, current_caller().policy)
    if target.forwards:
        return body.forwarded_chat()
    try:
        return body.own_chat()
    except ApiError:
        if isinstance(target, FoundRoute) and target.may_forward:
            return body.forwarded_chat()
        raise


def _as_message(generation: GenerationRequest) -> GenerationRequest:
    """Return the request with the requested length in its form, because the stop reason depends on it.

    The parts of an upstream's answer are in its text too, while they arrive.
    """
    parts = {"parts": True}
    form = generation.form | parts | {"max_tokens": generation.max_tokens}
    return replace(generation, payload=generation.payload | parts, form=form)


def _plain(context: DoorContext, view: JobView, deadline: RequestDeadline) -> Response:
    ended = wait_for_result(context, view, deadline, watch_client())
    if isinstance(ended, ApiError):
        return problem_response(ended)
    return json_response(message_json(ended), headers=route_headers(ended))


def _stream(context: DoorContext, view: JobView, deadline: RequestDeadline) -> Response:
    client = watch_client()
    items = follow_from_first_text(context, view, deadline, client)
    if isinstance(items, ApiError):
        return problem_response(items)
    request_id = g.request_id

    def error_frame(problem: ApiError) -> str:
        error = error_response(problem)
        return _frame(anthropic_error(error.body, error.status, request_id))

    frames = (_frame(event) if event else "" for event in _events(items, view))
    owned = owning_frames(context, view, frames, client, error_frame=error_frame, comment=_frame(PING))
    response = stream_response(owned)
    response.headers.extend(route_headers(view))
    return response


def _events(items: Iterator[OwnedItem], view: JobView) -> Iterator[Event | None]:
    """Yield the events of the message, and None for each NothingNew.

    Raises ApiError if the job did not succeed, TextDiverged if a new attempt generates text that differs from the text
    already sent, and EndNotSeen if the items stop before the job has ended.
    """
    events = MessageEvents(view)
    yield from events.begin()
    # `sent` is the text that the client has received, and `running` the text of the current attempt.
    sent, running = "", ""
    for item in items:
        if isinstance(item, NothingNew):
            yield None
        elif isinstance(item, JobRequeued):
            # At once, because the upstream may be away for long.
            if sent and view.form.get("forwarded") is True:
                raise upstream_lost(view.id)
        elif isinstance(item, JobStarted):
            running = running if item.resumed else ""
        elif isinstance(item, TextDelta):
            running += item.text
            if unsent := unsent_text(sent, running, view.id):
                sent = running
                yield from events.add(unsent)
        else:
            if problem := job_end_error(item.view):
                raise problem
            if unsent := unsent_text(sent, item.view.text or "", view.id):
                yield from events.add(unsent)
            yield from events.end(item.view)
            return
    raise EndNotSeen


def _frame(event: Event) -> str:
    return frame(event["type"], event)
