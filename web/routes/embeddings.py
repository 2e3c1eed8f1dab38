"""`/v1/embeddings`: vectors of texts, one job a request, through the same admission as all jobs."""

from apiflask import APIBlueprint
from flask import Response, request

from web.admission import Ask, offer
from web.answers import json_response, problem_response, yield_response
from web.auth import caller
from web.context import door
from web.embeddings_schema import EmbeddingsBody, embeddings_json
from web.openai_answers import end_problem
from web.owning import let_go
from web.patience import resolve
from web.peer import watch
from web.pools import Model
from web.present import has_ended
from web.problems import Problem, Wrong, invalid
from web.requests import attempt
from web.telemetry import traceparent
from web.verdicts import Yield
from web.waits import until_ended

bp = APIBlueprint("embeddings", __name__, tag="OpenAI")

#: A settle may arrive this long after the deadline and still be told, and reaping may be 250 ms late.
_GRACE_S = 2.0


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
    here, who = door(), caller()
    patience = resolve(
        "hold",
        named_ms=body.deadline_ms,
        start_within_ms=body.start_within_ms,
        headers=request.headers,
        settings=here.settings,
        policy=who.policy,
    )
    if isinstance(patience, Wrong):
        raise invalid([patience])
    _check_dimensions(body, here.pools.resolve(body.model, who.policy))
    ask = Ask(
        payload=body.payload(),
        patience=patience,
        model=body.model,
        # No token is generated; one stands in the books, where no job is without.
        max_tokens=1,
        default_max_tokens=1,
        attempt=attempt(),
        traceparent=traceparent(),
    )
    verdict = offer(here, who, ask)
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    else:
        gone = watch(request.environ)
        view = until_ended(here, verdict.view, patience.deadline_ms / 1000 + _GRACE_S, stop=gone)
        if not has_ended(view):
            let_go(here, view, gone=gone)
            problem: Problem | None = Problem("deadline_exceeded", f"job {view.id}: no end of it was seen in time")
        else:
            problem = end_problem(view)
        body_json = embeddings_json(view, body.encoding_format)
        response = problem_response(problem) if problem is not None else json_response(body_json)
    response.headers["x-deadline-ms"] = str(patience.deadline_ms)
    return response


def _check_dimensions(body: EmbeddingsBody, model: Model) -> None:
    if body.dimensions is not None and model.pooling and body.dimensions != model.width:
        message = f"dimensions={body.dimensions}: vectors of {model.name!r} have {model.width} numbers and are not cut"
        raise Problem("unsupported_parameter", message, param="dimensions")
