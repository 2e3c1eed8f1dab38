"""`/v1/embeddings` and `/v1/rerank`: vectors of texts, and scores of documents; each request is one job."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from apiflask import APIBlueprint
from flask import Response

from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.job_json import route_headers
from web.jobs.generation import GenerationRequest, embeddings_request, vector_request
from web.openai.embeddings_schema import EmbeddingsBody, embeddings_json
from web.openai.rerank_schema import RerankBody, rerank_json
from web.request.body import read_deadline
from web.request.caller import current_caller
from web.request.owned_calls import serve_owned, with_headers
from web.request.responses import json_response, name_ignored
from web.runtime.current import current_context

bp = APIBlueprint("embeddings", __name__, tag="OpenAI")


@bp.post("/v1/embeddings")
@bp.input(EmbeddingsBody, arg_name="body")
@bp.doc(
    summary="Create embeddings",
    description="The input is one text, one list of token ids, or up to 2048 of either. Closing the connection cancels "
    "the job. A request that names a model that generates text is answered with 400.",
    responses={
        200: "The embeddings, in the order of the inputs",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    },
)
def embeddings(body: EmbeddingsBody) -> Response:
    """Offer a job that embeds the input, wait for the job's end and return the embeddings."""
    return _serve(
        body,
        lambda deadline: embeddings_request(current_context(), body, current_caller().policy, deadline),
        lambda ended: embeddings_json(ended, body.encoding_format),
    )


@bp.post("/rerank")
@bp.post("/v2/rerank")
@bp.post("/v1/rerank")
@bp.input(RerankBody, arg_name="body")
@bp.doc(
    summary="Rank documents",
    description="Returns the documents in the order of how well they answer the query, with a score from 0 to 1 each. "
    "Closing the connection cancels the job. A request that names a model that does not rank is answered with 400.",
    responses={
        200: "The scores, the best first",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    },
)
def rerank(body: RerankBody) -> Response:
    """Offer a job that scores the documents, wait for the job's end and return them in the order of their scores."""
    return _serve(
        body,
        lambda deadline: vector_request(body.payload(), body.model, deadline),
        lambda ended: rerank_json(ended, body),
    )


def _serve(
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
