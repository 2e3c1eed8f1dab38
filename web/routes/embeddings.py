"""`/v1/embeddings`: vectors of texts, one job a request, through the same admission as all jobs."""

from apiflask import APIBlueprint
from flask import Response, request

from web.api.refusals import Yield
from web.http.api_errors import ApiError
from web.http.disconnect import watch_disconnect
from web.http.request import retry_attempt
from web.http.telemetry import traceparent
from web.openai.embeddings_schema import EmbeddingsBody, embeddings_json
from web.operations.admission import GenerationRequest, offer
from web.operations.cancel_on_disconnect import wait_for_result
from web.operations.idempotency import with_refusal_identity
from web.operations.request_caller import caller
from web.operations.request_deadline import read_deadline
from web.operations.responses import json_response, problem_response, yield_response
from web.runtime.current import current_door
from web.runtime.model_pools import Model

bp = APIBlueprint("embeddings", __name__, tag="OpenAI")


@bp.post("/v1/embeddings")
@bp.input(EmbeddingsBody, arg_name="body")
@bp.doc(
    summary="Vectors of texts",
    description="One text or up to 2048, or lists of token ids. The connection owns the job, as on the other routes of "
    "OpenAI's shape. A model that continues text has none: 400.",
    responses={200: "The vectors, in the order of the texts", 503: "Yield: come back after the hint"},
)
def embeddings(body: EmbeddingsBody) -> Response:
    """Embed texts."""
    context, who = current_door(), caller()
    deadline = read_deadline(context, who, body, "hold")
    _check_dimensions(body, context.pools.resolve(body.model, who.policy))
    ask = GenerationRequest(
        payload=body.payload(),
        deadline=deadline,
        model=body.model,
        # No token is generated; one stands in the books, where no job is without.
        max_tokens=1,
        default_max_tokens=1,
        attempt=retry_attempt(),
        traceparent=traceparent(),
    )
    verdict = offer(context, who, with_refusal_identity(ask, who.tenant))
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    else:
        ended = wait_for_result(context, verdict.view, deadline, watch_disconnect(request.environ))
        if isinstance(ended, ApiError):
            response = problem_response(ended)
        else:
            response = json_response(embeddings_json(ended, body.encoding_format))
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    return response


def _check_dimensions(body: EmbeddingsBody, model: Model) -> None:
    if body.dimensions is not None and model.pooling and body.dimensions != model.width:
        message = f"dimensions={body.dimensions}: vectors of {model.name!r} have {model.width} numbers and are not cut"
        raise ApiError("unsupported_parameter", message, param="dimensions")
