"""Anthropic's routes for messages; the unmodified `anthropic` package works with them."""

from dataclasses import replace
from functools import partial

from apiflask import APIBlueprint
from flask import Response, g

from shared.jobs.job import JobView
from web.anthropic.error_shape import ROUTES
from web.anthropic.message_answers import MessageEvents, message_json
from web.anthropic.messages_schema import CountTokensBody, MessagesBody
from web.api.job_json import route_headers
from web.http.api_errors import ApiError
from web.jobs.generation import GenerationRequest, text_request
from web.openai.chat_schema import ChatWithTools
from web.openai.forwarded_schema import ForwardedBody
from web.request.body import read_deadline
from web.request.caller import current_caller
from web.request.owned_calls import with_headers
from web.request.responses import json_response, name_ignored
from web.runtime.context import DoorContext
from web.runtime.current import current_context
from web.runtime.model_pools import FoundRoute
from web.semantic_cache.serving import serve_cached

bp = APIBlueprint(ROUTES, __name__, tag="Anthropic")


@bp.after_request
def _name_request(response: Response) -> Response:
    """Add the header in which Anthropic's clients look for the request's id."""
    response.headers["request-id"] = g.request_id
    return response


@bp.post("/v1/messages")
@bp.input(MessagesBody, arg_name="body")
@bp.doc(
    responses={
        200: "A message, or its events as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    }
)
def create(body: MessagesBody) -> Response:
    """Create a message, plain or streaming.

    Behaves like /v1/chat/completions, in the form of Anthropic's API. Closing the connection cancels the job.
    """
    context, caller = current_context(), current_caller()
    chat = _chat(context, body)
    deadline = read_deadline(context.settings, caller.policy, chat, "stream" if body.stream else "hold")
    request = _as_message(with_headers(text_request(context, chat, "chat", deadline), chat.return_ticket))
    to_format = partial(MessageEvents, request_id=g.request_id) if body.stream else None
    return name_ignored(context, body, serve_cached(context, request, deadline, _message_response, to_format))


@bp.post("/v1/messages/count_tokens")
@bp.input(CountTokensBody, arg_name="body")
@bp.doc(responses={200: "The estimated number of tokens"})
def count_tokens(body: CountTokensBody) -> Response:
    """Estimate the tokens of a message's prompt.

    The door has no tokenizer: it estimates the number from the length of the texts and from what the workers of the
    model have measured. No job is created.
    """
    context = current_context()
    target = context.pools.resolve_target(body.model, current_caller().policy)
    payload = _chat(context, body).payload()
    response = json_response({"input_tokens": max(model.estimate(payload) for model in target.models)})
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


def _message_response(view: JobView) -> Response:
    return json_response(message_json(view), headers=route_headers(view))
