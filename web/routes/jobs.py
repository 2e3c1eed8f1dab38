"""`/v1/jobs`: submit, read, cancel, list; with waits."""

from dataclasses import replace

from apiflask import APIBlueprint
from flask import Response, request

from shared.jobs.states import JobState
from web.api.deadline import RequestDeadline
from web.api.job_json import job_json
from web.api.refusals import Yield
from web.api.request_schema import SubmitBody
from web.http.api_errors import FieldError, invalid_value
from web.http.request import retry_attempt
from web.http.telemetry import traceparent
from web.operations.admission import GenerationRequest, native_request, offer
from web.operations.event_tickets import ticket_issuer
from web.operations.idempotency import with_job_identity
from web.operations.long_poll import LONGEST_WAIT_MS, refresh_job, wait_until_ended
from web.operations.request_caller import caller
from web.operations.request_deadline import read_deadline
from web.operations.responses import job_response, json_response, yield_response
from web.operations.tenant_jobs import erase_job, list_jobs, read_job
from web.runtime.context import DoorContext
from web.runtime.current import current_door

bp = APIBlueprint("jobs", __name__, tag="Jobs")

_LONGEST_PAGE = 100
_LONGEST_CURSOR = 64


@bp.post("/v1/jobs")
@bp.input(SubmitBody, arg_name="body")
@bp.doc(
    summary="Submit a job",
    description="202 with the job, 200 when it ended within the wait, or a yield that says when to come back. "
    "Headers: Idempotency-Key, Prefer: wait=S, X-Deadline-Ms, X-Attempt. Query: wait_ms.",
    responses={202: "Admitted", 200: "Admitted, and ended within the wait", 503: "Yield: come back after the hint"},
)
def submit(body: SubmitBody) -> Response:
    """Offer a job and answer the verdict."""
    context, who = current_door(), caller()
    wait_s, applied = _wait_s()
    ticket_of = ticket_issuer(context) if body.ticket else None
    verdict = offer(context, who, _ask(context, body, read_deadline(context, who, body, "poll"), who.tenant))
    if isinstance(verdict, Yield):
        return yield_response(verdict)
    ticket = ticket_of(verdict.view) if ticket_of else None
    return job_response(wait_until_ended(context, verdict.view, wait_s), submitted=True, ticket=ticket, headers=applied)


@bp.get("/v1/jobs/<job_id>")
@bp.doc(
    summary="Read a job",
    description="Counts as a poll. Query wait_ms, or Prefer: wait=S, holds the call until the job has ended.",
    responses={200: "The job", 404: "No such job of this tenant"},
)
def read(job_id: str) -> Response:
    """The job as it is, or as it is when the wait is over."""
    context = current_door()
    wait_s, applied = _wait_s()
    return job_response(wait_until_ended(context, read_job(context, job_id, caller().tenant), wait_s), headers=applied)


@bp.delete("/v1/jobs/<job_id>")
@bp.doc(
    summary="Cancel a job",
    description="A queued job is canceled at once, a running one within two steps. ?erase=1 on an ended job "
    "removes its text.",
    responses={200: "The job", 404: "No such job of this tenant"},
)
def cancel(job_id: str) -> Response:
    """Ask for the job's end, or remove an ended job's text."""
    context = current_door()
    view = read_job(context, job_id, caller().tenant)
    context.cancel(view)
    if _flag("erase"):
        erase_job(context, view)
    return job_response(refresh_job(context, view))


@bp.get("/v1/jobs")
@bp.doc(
    summary="List own jobs, newest first",
    description="Query: status, limit (1 to 100), cursor (of the page before).",
    responses={200: "A page of jobs"},
)
def page() -> Response:
    """Some of the tenant's jobs, and where to go on."""
    context, who = current_door(), caller()
    status = request.args.get("status")
    if status is not None and status not in set(JobState):
        raise invalid_value([FieldError("status", f"status={status[:60]!r} is not one of {', '.join(JobState)}")])
    limit = _whole("limit", request.args.get("limit", "20"), 1, _LONGEST_PAGE)
    cursor = request.args.get("cursor")
    if cursor is not None and not 1 <= len(cursor) <= _LONGEST_CURSOR:
        raise invalid_value([FieldError("cursor", f"cursor={cursor[:60]!r} is none that a page gave")])
    found = list_jobs(context, who.tenant, status=status, limit=limit, cursor=cursor)
    return json_response(
        {
            "object": "list",
            "data": [job_json(view) for view in found.jobs],
            "cursor": found.cursor,
            "has_more": found.cursor is not None,
        }
    )


def _ask(context: DoorContext, body: SubmitBody, deadline: RequestDeadline, tenant: str) -> GenerationRequest:
    ask = replace(native_request(body, deadline, context.settings), attempt=retry_attempt(), traceparent=traceparent())
    return with_job_identity(ask, tenant)


def _wait_s() -> tuple[float, dict[str, str]]:
    """How long to hold the call, from the query or the Prefer header, and the header that says it was heeded."""
    if "wait_ms" in request.args:
        wait_ms = _whole("wait_ms", request.args["wait_ms"], 0, 86_400_000)
        return min(wait_ms, LONGEST_WAIT_MS) / 1000, {}
    for preference in request.headers.get("Prefer", "").split(","):
        name, _, value = preference.strip().partition("=")
        if name.strip().lower() == "wait" and value.strip().isascii() and value.strip().isdigit():
            wait_s = min(int(value.strip()[:9]), LONGEST_WAIT_MS // 1000)
            return float(wait_s), {"Preference-Applied": f"wait={wait_s}"}
    return 0.0, {}


def _whole(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high):
        raise invalid_value([FieldError(name, f"{name}={text[:60]!r} is not a whole number from {low} to {high}")])
    return int(text)


def _flag(name: str) -> bool:
    return request.args.get(name, "0").lower() in {"1", "true", "yes"}
