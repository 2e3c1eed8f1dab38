"""`/v1/quote`: what a submit would cost, when it would end and what it would be answered; runs nothing."""

from apiflask import APIBlueprint
from flask import Response

from web.api.refusals import to_yield
from web.api.request_schema import SubmitBody
from web.operations.admission import native_request, quote
from web.operations.request_caller import caller
from web.operations.request_deadline import read_deadline
from web.operations.responses import json_response
from web.runtime.current import current_door

bp = APIBlueprint("quote", __name__, tag="Jobs")


@bp.post("/v1/quote")
@bp.input(SubmitBody, arg_name="body")
@bp.doc(
    summary="Ask what a job would come to",
    description="Takes the body of a submit, writes nothing and promises nothing.",
    responses={200: "Cost, expected end and verdict"},
)
def ask(body: SubmitBody) -> Response:
    """Quote a job."""
    context, who = current_door(), caller()
    deadline = read_deadline(context, who, body, "poll")
    job, answer = quote(context, who, native_request(body, deadline, context.settings))
    refusal = None
    if answer.refused is not None:
        bound_status = context.settings.tenant_bound_status
        refusal = to_yield(
            answer.refused, tenant=job.tenant, model=job.model, deadline=deadline, bound_status=bound_status
        ).body
    return json_response(
        {
            "object": "quote",
            "tenant": job.tenant,
            "model": job.model,
            "prompt_tokens": job.prompt_tokens,
            "max_tokens": job.max_tokens,
            "cost_mwt": answer.cost_mwt,
            "eta_ms": answer.eta_ms,
            "verdict": "admitted" if refusal is None else "yield",
            "refusal": refusal,
        }
    )
