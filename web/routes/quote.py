"""`/v1/quote`: what a submit would cost, when it would end and what it would be answered; runs nothing."""

from apiflask import APIBlueprint
from flask import Response

from web.api.refusals import to_yield
from web.api.request_schema import SubmitBody
from web.operations.admission import ask_of, quote
from web.operations.request_caller import caller
from web.operations.request_deadline import patience_of
from web.operations.responses import json_response
from web.runtime.current import door

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
    here, who = door(), caller()
    patience = patience_of(here, who, body, "poll")
    job, answer = quote(here, who, ask_of(body, patience, here.settings))
    refusal = None
    if answer.refused is not None:
        bound_status = here.settings.tenant_bound_status
        refusal = to_yield(
            answer.refused, tenant=job.tenant, model=job.model, patience=patience, bound_status=bound_status
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
