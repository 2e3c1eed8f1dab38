"""OpenAI's routes for chats, completions, embeddings and models, and those to rank documents."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.job import JobView
from shared.store.replies import PoolReason
from web.api.deadline import RequestDeadline
from web.api.job_json import route_headers
from web.jobs.generation import GenerationRequest, embeddings_request, forwarded_of, text_request, vector_request
from web.openai.chat_answers import AnswerKind, ChatStream, UsageChunks, answer_format
from web.openai.chat_schema import ChatWithTools, CompletionBody
from web.openai.embeddings_schema import EmbeddingsBody, embeddings_json
from web.openai.forwarded_schema import ForwardedBody
from web.openai.rerank_schema import RerankBody, rerank_json
from web.request.body import read_deadline
from web.request.caller import current_caller
from web.request.owned_calls import serve_owned, with_headers
from web.request.responses import json_response, list_response, name_ignored
from web.runtime.current import current_context
from web.semantic_cache.serving import serve_cached

bp = APIBlueprint("openai", __name__, tag="OpenAI")

#: The `created` time of every model, which OpenAI's schema requires. Models in Penstock have no such time, so the start
#: of this process is used.
_MODEL_CREATED = int(time.time())


@bp.get("/v1/models")
@bp.doc(responses={200: "The models that this tenant may use"})
def models() -> Response:
    """List live models.

    The objects have the fields of OpenAI's API and of Anthropic's.
    """
    names = current_context().pools.visible_names(current_caller().policy)
    return list_response([_model_json(name) for name in names], has_more=False)


@bp.get("/v1/models/<path:name>")
@bp.doc(responses={200: "The model", 404: "No such model, or this tenant may not use it"})
def model(name: str) -> Response:
    """Read one model."""
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
    responses={
        200: "A chat.completion, or its chunks as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    }
)
def chat(body: ChatWithTools) -> Response:
    """Create a chat completion, plain or streaming.

    Closing the connection cancels the job. If the job does not succeed, the answer is an error with status 504 if the
    job expired, 500 if it failed, or 409 if it was canceled.
    """
    return _serve(body, "chat")


@bp.post("/v1/completions")
@_forwarded_first("completion")
@bp.input(CompletionBody, arg_name="body")
@bp.doc(
    responses={
        200: "A text_completion, or its chunks as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    }
)
def completions(body: CompletionBody) -> Response:
    """Create a completion, plain or streaming.

    Behaves like /v1/chat/completions. Without max_tokens, at most 16 tokens are generated.
    """
    return _serve(body, "completion")


def _serve(body: ChatWithTools | CompletionBody | ForwardedBody, kind: AnswerKind) -> Response:
    context, caller = current_context(), current_caller()
    deadline = read_deadline(context.settings, caller.policy, body, "stream" if body.stream else "hold")
    generation = with_headers(text_request(context, body, kind, deadline), body.return_ticket)

    def to_response(view: JobView) -> Response:
        return json_response(answer_format(view, kind).complete(view), headers=route_headers(view))

    def to_format(view: JobView) -> ChatStream:
        usage_chunks: UsageChunks = body.stream_options.usage_chunks if body.stream_options else "none"
        return ChatStream(answer_format(view, kind, usage_chunks))

    seed = None if isinstance(body, ForwardedBody) else body.seed
    response = serve_cached(context, generation, deadline, to_response, to_format if body.stream else None, seed=seed)
    return response if isinstance(body, ForwardedBody) else name_ignored(context, body, response)


def _model_json(name: str) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(_MODEL_CREATED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    of_anthropic = {"type": "model", "display_name": name, "created_at": created_at}
    longest = current_context().pools.max_model_len(name)
    of_vllm = {} if longest is None else {"max_model_len": longest}
    own = {"id": name, "object": "model", "created": _MODEL_CREATED, "owned_by": "penstock"}
    own |= {"loaded": current_context().pools.is_loaded(name)}
    if current_context().pools.load_fails(name):
        own |= {"reason": PoolReason.LOAD_FAILED.value}
    if base := current_context().pools.base_of(name):
        # As vLLM names the model of an adapter.
        own |= {"parent": base}
    return own | of_anthropic | of_vllm


def forwarded_body(kind: AnswerKind) -> ForwardedBody | None:
    """Return the body of the current request if its model is served by an upstream, otherwise None.

    Raises ApiError and StoreUnavailable.
    """
    return forwarded_of(current_context(), request.get_json(), kind, current_caller().policy)


@bp.post("/v1/embeddings")
@bp.input(EmbeddingsBody, arg_name="body")
@bp.doc(
    responses={
        200: "The embeddings, in the order of the inputs",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    }
)
def embeddings(body: EmbeddingsBody) -> Response:
    """Create embeddings.

    The input is one text, one list of token ids, or up to 2048 of either. Closing the connection cancels the job. A
    request that names a model that generates text is answered with 400.
    """
    return _serve_vectors(
        body,
        lambda deadline: embeddings_request(current_context(), body, current_caller().policy, deadline),
        lambda ended: embeddings_json(ended, body.encoding_format),
    )


@bp.post("/rerank")
@bp.post("/v2/rerank")
@bp.post("/v1/rerank")
@bp.input(RerankBody, arg_name="body")
@bp.doc(
    responses={
        200: "The scores, the best first",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    }
)
def rerank(body: RerankBody) -> Response:
    """Rank documents.

    Returns the documents in the order of how well they answer the query, with a score from 0 to 1 each. Closing the
    connection cancels the job. A request that names a model that does not rank is answered with 400.
    """
    return _serve_vectors(
        body,
        lambda deadline: vector_request(body.payload(), body.model, deadline),
        lambda ended: rerank_json(ended, body),
    )


def _serve_vectors(
    body: EmbeddingsBody | RerankBody,
    to_request: Callable[[RequestDeadline], GenerationRequest],
    to_json: Callable[[JobView], dict[str, Any]],
) -> Response:
    context, caller = current_context(), current_caller()
    deadline = read_deadline(context.settings, caller.policy, body, "hold")
    generation = replace(
        with_headers(to_request(deadline), body.return_ticket), priority=body.priority, private=body.private
    )

    def to_response(view: JobView) -> Response:
        return json_response(to_json(view), headers=route_headers(view))

    return name_ignored(context, body, serve_owned(context, generation, deadline, to_response))
