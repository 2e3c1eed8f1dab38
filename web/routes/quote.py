"""`/v1/quote`: the cost and eta of a job, and the verdict on it if it were submitted now."""

from apiflask import APIBlueprint
from flask import Response

from web.api.refusals import to_yield
from web.api.request_schema import SubmitBody
from web.jobs.admission import quote
from web.jobs.generation import native_request
from web.request.body import read_deadline
from web.request.caller import current_caller
from web.request.responses import json_response
from web.runtime.current import current_context

bp = APIBlueprint("quote", __name__, tag="Jobs")


@bp.post("/v1/quote")
@bp.input(SubmitBody, arg_name="body")
@bp.doc(
    summary="Quote a job",
    description="The body is the same as for POST /v1/jobs. Nothing is written to the store, and the verdict may be "
    "different when the job is submitted later.",
    responses={200: "The job's cost, its predicted end, and the verdict if it were submitted now"},
)
def quote_job(body: SubmitBody) -> Response:
    """Return a quote for the job in the body, without submitting the job."""
    context, caller = current_context(), current_caller()
    deadline = read_deadline(context.settings, caller.policy, body, "poll")
    job, answer = quote(context, caller, native_request(body, deadline, context.settings))
    early_ms, late_ms = answer.eta_interval_ms or (None, None)
    refusal = None
    if answer.refused is not None:
        bound_status = context.settings.tenant_bound_status
        refusal = to_yield(
            answer.refused, tenant=job.tenant, model=job.model, deadline=deadline, bound_status=bound_status
        ).body
    within = answer.pool or job
    return json_response(
        {
            "object": "quote",
            "tenant": job.tenant,
            "model": within.model,
            "prompt_tokens": within.prompt_tokens,
            "max_tokens": within.max_tokens,
            "cost_mwt": answer.cost_mwt,
            "max_cost_micro": answer.max_cost_micro,
            "eta_ms": answer.eta_ms,
            "eta_early_ms": early_ms,
            "eta_late_ms": late_ms,
            "verdict": "admitted" if refusal is None else "yield",
            "refusal": refusal,
            **({"routed": {"pool": within.model, "why": answer.why}} if answer.why else {}),
        }
    )
