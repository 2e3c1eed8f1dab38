"""Calls whose connection owns their job: what their headers say, and their answers, whole or as streams."""

from collections.abc import Callable
from dataclasses import replace

from flask import Response, g

from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.refusals import Yield
from web.api.stream_format import StreamFormat
from web.http.api_errors import ApiError
from web.jobs.admission import AdmittedJob, offer
from web.jobs.cancel_on_disconnect import wait_for_result
from web.jobs.generation import GenerationRequest
from web.request.body import retry_attempt, return_ticket
from web.request.caller import current_caller, watch_client
from web.request.idempotency import with_refusal_identity
from web.request.owned_streams import owned_stream
from web.request.responses import problem_response, yield_response
from web.request.telemetry import traceparent
from web.runtime.context import DoorContext


def with_headers(generation: GenerationRequest, named_ticket: str | None) -> GenerationRequest:
    """Return a copy of the request with the values of its headers. `named_ticket` is the return ticket in its body."""
    return replace(
        generation,
        attempt=retry_attempt(),
        return_ticket=return_ticket(named_ticket),
        traceparent=traceparent(),
        request_id=g.request_id,
    )


def serve_owned(
    context: DoorContext,
    generation: GenerationRequest,
    deadline: RequestDeadline,
    to_response: Callable[[JobView], Response],
    to_format: Callable[[JobView], StreamFormat] | None = None,
) -> Response:
    """Offer the job of a request and return its answer; see `answer_owned`."""
    caller = current_caller()
    verdict = offer(context, caller, with_refusal_identity(generation, caller.tenant))
    return answer_owned(context, verdict, deadline, to_response, to_format)


def answer_owned(
    context: DoorContext,
    verdict: AdmittedJob | Yield,
    deadline: RequestDeadline,
    to_response: Callable[[JobView], Response],
    to_format: Callable[[JobView], StreamFormat] | None = None,
    *,
    is_forwarded: Callable[[JobView], bool] = lambda view: view.form.get("forwarded") is True,
    on_end: Callable[[JobView], None] = lambda _: None,
) -> Response:
    """Return the refusal, the stream of a job if there is a `to_format`, or what `to_response` makes of its result.

    `on_end` is called once the result was read, or the stream of an ended job is over. See `AnswerStream` for
    `is_forwarded`.
    """
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    else:
        view, client = verdict.view, watch_client()
        deadline = deadline.as_admitted(view.deadline_ms)
        if to_format is not None:
            response = owned_stream(context, view, deadline, client, to_format(view), is_forwarded, on_end)
        else:
            ended = wait_for_result(context, view, deadline, client)
            on_end(view)
            response = problem_response(ended) if isinstance(ended, ApiError) else to_response(ended)
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    return response
