"""`/v1/jobs` and `/v1/quote`: submit, quote, read, cancel and list jobs; calls can wait for the end of a job."""

from contextlib import ExitStack

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.job import JobView
from shared.jobs.states import JobState
from web.api.job_json import job_json
from web.api.refusals import Yield, to_yield
from web.api.request_schema import SubmitBody
from web.http import shutdown
from web.http.api_errors import invalid_field
from web.jobs.admission import quote
from web.jobs.generation import native_request
from web.jobs.run_again import again_request
from web.jobs.spilling import offer
from web.jobs.tenant_jobs import (
    LONGEST_WAIT_MS,
    erase_job,
    list_jobs,
    read_job,
    refresh_job,
    ticket_issuer,
    wait_until_ended,
    waiting_for_own_job,
)
from web.request.body import read_deadline, with_job_identity
from web.request.caller import current_caller, watch_client
from web.request.owned_calls import with_headers
from web.request.responses import job_response, json_response, yield_response
from web.retrieval.step import retrieve
from web.runtime.context import DoorContext
from web.runtime.current import current_context

bp = APIBlueprint("jobs", __name__, tag="Jobs")

_MAX_PAGE_JOBS = 100
_MAX_CURSOR_CHARS = 64


@bp.post("/v1/jobs")
@bp.input(SubmitBody, arg_name="body")
@bp.doc(
    responses={
        202: "The job was admitted and has not ended",
        200: "The job was admitted and has ended within the requested wait",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    }
)
def submit(body: SubmitBody) -> Response:
    """Submit a job.

    An admitted job is returned with status 202, or with 200 if it has ended within the time that wait_ms or Prefer:
    wait=S requests. A refused job is answered with a yield. The request may have the headers Idempotency-Key, Prefer,
    X-Deadline-Ms and X-Attempt, and wait_ms in the query.
    """
    context, caller = current_context(), current_caller()
    wait_s, wait_headers = _requested_wait()
    make_ticket = ticket_issuer(context) if body.ticket else None
    deadline = read_deadline(context.settings, caller.policy, body, "poll")
    generation = with_headers(native_request(body, deadline, context.settings), body.return_ticket)
    generation = with_job_identity(generation, caller.tenant)
    verdict = offer(context, caller, retrieve(context, caller, generation))
    if isinstance(verdict, Yield):
        return yield_response(verdict)
    ticket = make_ticket(verdict.view) if make_ticket else None
    with waiting_for_own_job():
        view = _wait(context, verdict.view, wait_s)
    return job_response(view, submitted=True, ticket=ticket, headers=wait_headers)


@bp.get("/v1/jobs/<job_id>")
@bp.doc(responses={200: "The job", 404: "This tenant has no such job"})
def read(job_id: str) -> Response:
    """Read a job.

    A read counts as a poll of the job. With wait_ms in the query or the header Prefer: wait=S, the call blocks until
    the job has ended or that time has passed.
    """
    context = current_context()
    wait_s, wait_headers = _requested_wait()
    view = read_job(context, job_id, current_caller().tenant)
    return job_response(_wait(context, view, wait_s), headers=wait_headers)


@bp.delete("/v1/jobs/<job_id>")
@bp.doc(responses={200: "The job", 404: "This tenant has no such job"})
def cancel(job_id: str) -> Response:
    """Cancel a job.

    Cancels a queued job at once and a running job within two engine steps. A job that has already ended does not
    change, except that ?erase=1 removes its text.
    """
    context = current_context()
    view = read_job(context, job_id, current_caller().tenant)
    context.cancel(view)
    if _query_flag("erase"):
        erase_job(context, view)
    return job_response(refresh_job(context, view))


@bp.get("/v1/jobs")
@bp.doc(responses={200: "One page of jobs"})
def page() -> Response:
    """List the tenant's jobs, newest first.

    The query may have status, limit (1 to 100) and cursor (the `cursor` of the previous page).
    """
    context, caller = current_context(), current_caller()
    status = request.args.get("status")
    if status is not None and status not in set(JobState):
        raise invalid_field("status", f"status={status[:60]!r} is not one of {', '.join(JobState)}")
    limit = _whole_number("limit", request.args.get("limit", "20"), 1, _MAX_PAGE_JOBS)
    cursor = request.args.get("cursor")
    if cursor is not None and not 1 <= len(cursor) <= _MAX_CURSOR_CHARS:
        raise invalid_field("cursor", f"cursor={cursor[:60]!r} is not the cursor of a page")
    found = list_jobs(context, caller.tenant, status=status, limit=limit, cursor=cursor)
    return json_response(
        {
            "object": "list",
            "data": [job_json(view) for view in found.jobs],
            "cursor": found.cursor,
            "has_more": found.cursor is not None,
        }
    )


@bp.post("/v1/jobs/<job_id>/again")
@bp.doc(
    responses={
        202: "The new job was admitted",
        200: "The new job was admitted earlier, by a call with the same Idempotency-Key, and has ended",
        404: "This tenant has no such job",
        409: "The job has not ended, or its request is not kept",
        503: "A yield: the new job was refused; retry after `retry_hint_ms`",
    }
)
def run_again(job_id: str) -> Response:
    """Run a job again.

    Offers a new job with the request of one that has ended, to the same pool and with as much time. The tenant's policy
    must allow it, because requests are otherwise deleted when their jobs end. The request may have the header
    Idempotency-Key.
    """
    context, caller = current_context(), current_caller()
    view = read_job(context, job_id, caller.tenant)
    with ExitStack() as held:
        generation = with_job_identity(again_request(context, caller, view, held), caller.tenant)
        verdict = offer(context, caller, generation)
    if isinstance(verdict, Yield):
        return yield_response(verdict)
    return job_response(verdict.view, submitted=True)


def _wait(context: DoorContext, view: JobView, wait_s: float) -> JobView:
    """Wait until the job has ended or `wait_s` has passed; return the job as last read.

    The wait ends early if the client disconnects: nobody polls the job any more.
    Raises ApiError (401, 403) if the caller's key ends first, and as `wait_until_ended` does.
    """
    if wait_s <= 0:
        return view
    client = watch_client()
    stop = shutdown.requested.is_set
    view = wait_until_ended(context, view, wait_s, stop=lambda: stop() or client.gone())
    if client.key_problem is not None:
        raise client.key_problem
    return view


def _requested_wait() -> tuple[float, dict[str, str]]:
    """Return how long to block the call, in seconds, and a response header that confirms `Prefer: wait`.

    `wait_ms` in the query takes precedence over the Prefer header. With neither, the call does not block. The header is
    returned only if the Prefer header was used. Other preferences are ignored, as RFC 7240 demands.
    """
    if request.query_string and "wait_ms" in request.args:
        wait_ms = _whole_number("wait_ms", request.args["wait_ms"], 0, 86_400_000)
        return min(wait_ms, LONGEST_WAIT_MS) / 1000, {}
    for preference in request.environ.get("HTTP_PREFER", "").split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            wait_s = min(_whole_number("wait", value.strip().strip('"'), 0, 86_400, "Prefer"), LONGEST_WAIT_MS // 1000)
            return float(wait_s), {"Preference-Applied": f"wait={wait_s}"}
    return 0.0, {}


def _whole_number(name: str, text: str, low: int, high: int, param: str = "") -> int:
    """Return the number in a text. Raises ApiError, which names the field or header `param`, by default `name`."""
    if not (text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high):
        raise invalid_field(param or name, f"{name}={text[:60]!r} is not a whole number from {low} to {high}")
    return int(text)


def _query_flag(name: str) -> bool:
    return request.args.get(name, "0").lower() in {"1", "true", "yes"}


@bp.post("/v1/quote")
@bp.input(SubmitBody, arg_name="body")
@bp.doc(responses={200: "The job's cost, its predicted end, and the verdict if it were submitted now"})
def quote_job(body: SubmitBody) -> Response:
    """Quote a job.

    The body is the same as for POST /v1/jobs. Nothing is written to the store, and the verdict may be different when
    the job is submitted later.
    """
    context, caller = current_context(), current_caller()
    deadline = read_deadline(context.settings, caller.policy, body, "poll")
    generation = native_request(body, deadline, context.settings)
    job, answer = quote(context, caller, retrieve(context, caller, generation))
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
