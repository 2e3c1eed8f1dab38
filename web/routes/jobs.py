"""`/v1/jobs`: submit, read, cancel and list jobs; calls that submit or read a job can wait for its end."""

from dataclasses import replace

from apiflask import APIBlueprint
from flask import Response, g, request

from shared.jobs.job import JobView
from shared.jobs.states import JobState
from web.api.deadline import RequestDeadline
from web.api.job_json import job_json
from web.api.refusals import Yield
from web.api.request_schema import SubmitBody
from web.http import shutdown
from web.http.api_errors import invalid_field
from web.jobs.admission import offer
from web.jobs.generation import GenerationRequest, native_request
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
from web.request.body import read_deadline, retry_attempt, return_ticket
from web.request.caller import current_caller, watch_client
from web.request.idempotency import with_job_identity
from web.request.responses import job_response, json_response, yield_response
from web.request.telemetry import traceparent
from web.runtime.context import DoorContext
from web.runtime.current import current_context

bp = APIBlueprint("jobs", __name__, tag="Jobs")

_MAX_PAGE_JOBS = 100
_MAX_CURSOR_CHARS = 64


@bp.post("/v1/jobs")
@bp.input(SubmitBody, arg_name="body")
@bp.doc(
    summary="Submit a job",
    description="An admitted job is returned with status 202, or with 200 if it has ended within the time that wait_ms "
    "or Prefer: wait=S requests. A refused job is answered with a yield. The request may have the headers "
    "Idempotency-Key, Prefer, X-Deadline-Ms and X-Attempt, and wait_ms in the query.",
    responses={
        202: "The job was admitted and has not ended",
        200: "The job was admitted and has ended within the requested wait",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    },
)
def submit(body: SubmitBody) -> Response:
    """Offer a job to the store and return the admitted job or the refusal."""
    context, caller = current_context(), current_caller()
    wait_s, wait_headers = _requested_wait()
    make_ticket = ticket_issuer(context) if body.ticket else None
    deadline = read_deadline(context.settings, caller.policy, body, "poll")
    verdict = offer(context, caller, _generation_request(context, body, deadline, caller.tenant))
    if isinstance(verdict, Yield):
        return yield_response(verdict)
    ticket = make_ticket(verdict.view) if make_ticket else None
    with waiting_for_own_job():
        view = _wait(context, verdict.view, wait_s)
    return job_response(view, submitted=True, ticket=ticket, headers=wait_headers)


@bp.get("/v1/jobs/<job_id>")
@bp.doc(
    summary="Read a job",
    description="A read counts as a poll of the job. With wait_ms in the query or the header Prefer: wait=S, the call "
    "blocks until the job has ended or that time has passed.",
    responses={200: "The job", 404: "This tenant has no such job"},
)
def read(job_id: str) -> Response:
    """Return the job; if the request asks for a wait, first wait for the job's end."""
    context = current_context()
    wait_s, wait_headers = _requested_wait()
    view = read_job(context, job_id, current_caller().tenant)
    return job_response(_wait(context, view, wait_s), headers=wait_headers)


@bp.delete("/v1/jobs/<job_id>")
@bp.doc(
    summary="Cancel a job",
    description="Cancels a queued job at once and a running job within two engine steps. A job that has already ended "
    "does not change, except that ?erase=1 removes its text.",
    responses={200: "The job", 404: "This tenant has no such job"},
)
def cancel(job_id: str) -> Response:
    """Cancel the job. With `erase`, also remove the text of a job that has ended."""
    context = current_context()
    view = read_job(context, job_id, current_caller().tenant)
    context.cancel(view)
    if _query_flag("erase"):
        erase_job(context, view)
    return job_response(refresh_job(context, view))


@bp.get("/v1/jobs")
@bp.doc(
    summary="List the tenant's jobs, newest first",
    description="The query may have status, limit (1 to 100) and cursor (the `cursor` of the previous page).",
    responses={200: "One page of jobs"},
)
def page() -> Response:
    """Return one page of the tenant's jobs, with the cursor for the next page."""
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


def _generation_request(
    context: DoorContext, body: SubmitBody, deadline: RequestDeadline, tenant: str
) -> GenerationRequest:
    generation = native_request(body, deadline, context.settings)
    generation = replace(
        generation,
        attempt=retry_attempt(),
        traceparent=traceparent(),
        request_id=g.request_id,
        return_ticket=return_ticket(body.return_ticket),
    )
    return with_job_identity(generation, tenant)


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
    if "wait_ms" in request.args:
        wait_ms = _whole_number("wait_ms", request.args["wait_ms"], 0, 86_400_000)
        return min(wait_ms, LONGEST_WAIT_MS) / 1000, {}
    for preference in request.headers.get("Prefer", "").split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            wait_s = min(_whole_number("wait", value.strip().strip('"'), 0, 86_400, "Prefer"), LONGEST_WAIT_MS // 1000)
            return float(wait_s), {"Preference-Applied": f"wait={wait_s}"}
    return 0.0, {}


def _whole_number(name: str, text: str, low: int, high: int, param: str = "") -> int:
    """Return the number in a text. Raises ApiError, which names the field or header `param`, by default `name`."""
    if not (text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high):
        message = f"{name}={text[:60]!r} is not a whole number from {low} to {high}"
        raise invalid_field(param or name, message)
    return int(text)


def _query_flag(name: str) -> bool:
    return request.args.get(name, "0").lower() in {"1", "true", "yes"}
