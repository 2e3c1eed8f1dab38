"""`/v1/responses`: create, read, follow and cancel responses; each is one job, admitted like all other jobs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from typing import Any, cast

from apiflask import APIBlueprint
from flask import Response, g, request

from shared.jobs.job import JobView
from web.api.deadline import RequestDeadline
from web.api.job_json import has_ended, job_headers, route_headers
from web.api.refusals import Yield
from web.http import shutdown
from web.http.api_errors import ApiError, FieldError, invalid_value, quoted
from web.jobs.admission import AdmittedJob, offer
from web.jobs.callers import Caller
from web.jobs.cancel_on_disconnect import (
    cancel_unless_stopping,
    follow_from_first_text,
    no_end_error,
    wait_for_result,
)
from web.jobs.conversations import (
    continued,
    delete_response,
    find_response,
    forget_unstored,
)
from web.jobs.event_stream import (
    READER_CHECK_INTERVAL_S,
    JobEnded,
    JobRequeued,
    OwnedItem,
    StreamItem,
    TextDelta,
    follow_job,
)
from web.jobs.item_references import items_of_input, with_referenced_items
from web.jobs.long_poll import refresh_job
from web.jobs.openai_requests import response_request
from web.jobs.responses_events import ResponseEvents, TextDiverged
from web.openai.accepted_fields import unsupported
from web.openai.responses_answers import PREFIX, has_logprobs, is_response, response_json, status_of
from web.openai.responses_schema import check_include
from web.openai.responses_tools import ResponsesWithTools
from web.request.body import DoorRequest, retry_attempt, return_ticket
from web.request.caller import current_caller, watch_client
from web.request.deadline import read_deadline
from web.request.idempotency import with_job_identity, with_refusal_identity
from web.request.ignored_fields import name_ignored
from web.request.owned_streams import upstream_lost
from web.request.page_arguments import oldest_first, page_after, page_limit
from web.request.responses import json_response, list_response, problem_response, yield_response
from web.request.sse import stream_response, with_comments
from web.request.telemetry import traceparent
from web.runtime.context import DoorContext
from web.runtime.credentials.client_watch import ClientWatch
from web.runtime.current import current_context
from web.runtime.model_pools import FoundRoute

bp = APIBlueprint("responses", __name__, tag="OpenAI")

#: How many items of an input a page has by default and at most, as in OpenAI's API.
_INPUT_PAGE, _MAX_INPUT_PAGE = 20, 100


def _with_references(view: Callable[..., Response]) -> Callable[..., Response]:
    """Replace references to items in the body before the decorated view validates it."""

    @wraps(view)
    def serve(**arguments: Any) -> Response:
        # Closed as soon as the job is offered, or here.
        with ExitStack() as g.references:
            door_request = cast("DoorRequest", request)
            value, tenant = door_request.get_json(), current_caller().tenant
            door_request.replace_json(with_referenced_items(current_context(), tenant, value, g.references))
            return view(**arguments)

    return serve


@bp.post("/v1/responses")
@_with_references
@bp.input(ResponsesWithTools, arg_name="body")
@bp.doc(
    summary="Create a response, plain, streaming or in the background",
    description="Without background, closing the connection cancels the job, and a job that does not succeed is "
    "answered with the same errors as on /v1/chat/completions. With background, the job continues when the connection "
    "closes, and the `status` of the response shows the job's outcome.",
    responses={
        200: "The response, or its events as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    },
)
def create(body: ResponsesWithTools) -> Response:
    """Offer a job and answer as the body requests: with the whole response, a stream, or a background response."""
    context, caller = current_context(), current_caller()
    deadline = read_deadline(context, caller, body, "poll" if body.background else "stream" if body.stream else "hold")
    verdict = _offer(context, caller, body, deadline)
    if not isinstance(verdict, Yield):
        deadline = deadline.as_admitted(verdict.view.deadline_ms)
    if isinstance(verdict, Yield):
        response = yield_response(verdict)
    elif body.background:
        response = _reader_stream(context, verdict.view, None) if body.stream else _view_response(verdict.view)
    elif body.stream:
        response = _owner_stream(context, verdict.view, deadline)
    else:
        response = _plain(context, verdict.view, deadline)
    response.headers["x-deadline-ms"] = str(deadline.deadline_ms)
    response.headers.update({} if isinstance(verdict, Yield) else route_headers(verdict.view))
    return name_ignored(context, body, response)


@bp.get("/v1/responses/<response_id>")
@bp.doc(
    summary="Read a response, or resume its stream",
    description="A read counts as a poll of the job. With ?stream=true, the response's events are streamed; with "
    "starting_after=N as well, only those with a sequence number above N.",
    responses={
        200: "The response, or its events as server-sent events",
        400: "`include` names a field that is not supported, or that was not requested when the response was created",
        404: "This tenant has no such response",
    },
)
def read(response_id: str) -> Response:
    """Return the response as it is now, or stream its events."""
    stream, after = _query_bool("stream"), _starting_after()
    if after is not None and not stream:
        raise invalid_value(
            [FieldError("starting_after", f"starting_after={after} is only valid for a stream; add stream=true")]
        )
    context = current_context()
    view = _find_response(context, response_id)
    for name in [*request.args.getlist("include"), *request.args.getlist("include[]")]:
        if check_include(name) and not has_logprobs(view):
            raise unsupported("include", f"{name} must be requested when the response is created")
    return _reader_stream(context, view, after) if stream else _view_response(view)


@bp.get("/v1/responses/<response_id>/input_items")
@bp.doc(
    summary="List the input of a response",
    description="The items of the whole conversation before the answer, without the instructions. They are kept as "
    "long as the response.",
    responses={
        200: "One page of items, the newest first",
        404: "This tenant has no such response, or its input is gone",
    },
)
def input_items(response_id: str) -> Response:
    """Return one page of the items."""
    limit, after, is_ascending = page_limit(_INPUT_PAGE, _MAX_INPUT_PAGE), page_after(), oldest_first()
    context = current_context()
    view = _find_response(context, response_id)
    with ExitStack() as held:
        items = items_of_input(context, view, held)
        items = items if is_ascending else items[::-1]
        ids = [item["id"] for item in items]
        if after is not None and after not in ids:
            raise invalid_value([FieldError("after", f"after={quoted(after)} is not the id of an item of this input")])
        first = 0 if after is None else ids.index(after) + 1
        page = items[first : first + limit]
        return list_response(page, has_more=first + limit < len(items))


@bp.post("/v1/responses/input_tokens")
@_with_references
@bp.input(ResponsesWithTools, arg_name="body")
@bp.doc(
    summary="Estimate the tokens of a response's prompt",
    description="The door has no tokenizer: it estimates the number from the length of the texts and from what the "
    "workers of the model have measured. No job is created.",
    responses={200: "The estimated number of tokens"},
)
def input_tokens(body: ResponsesWithTools) -> Response:
    """Estimate how many tokens the prompt of a response has."""
    context, caller = current_context(), current_caller()
    target = context.pools.resolve_target(body.model, caller.policy)
    deadline = read_deadline(context, caller, body, "hold")
    with ExitStack() as held:
        payload = continued(context, caller.tenant, response_request(context, body, deadline), held).payload
        models = target.models if isinstance(target, FoundRoute) else (target,)
        tokens = max(model.estimate(payload) for model in models)
    return name_ignored(context, body, json_response({"object": "response.input_tokens", "input_tokens": tokens}))


@bp.post("/v1/responses/<response_id>/cancel")
@bp.doc(
    summary="Cancel a response",
    description="Works like DELETE /v1/jobs/{id}. A response that has already ended is returned unchanged.",
    responses={200: "The response", 404: "This tenant has no such response"},
)
def cancel(response_id: str) -> Response:
    """Cancel the response's job."""
    context = current_context()
    view = _find_response(context, response_id)
    context.cancel(view)
    return _view_response(refresh_job(context, view))


@bp.delete("/v1/responses/<response_id>")
@bp.doc(
    summary="Delete a response",
    description="Deletes its text and its request. It can then neither be read nor be continued. A response that has "
    "not ended has to be canceled first.",
    responses={200: "What was deleted", 400: "The response has not ended", 404: "This tenant has no such response"},
)
def delete(response_id: str) -> Response:
    """Delete a response that has ended."""
    context = current_context()
    view = _find_response(context, response_id)
    if not has_ended(view):
        message = f"response_id={response_id[:64]!r} has the status {status_of(view)}: cancel it before you delete it"
        raise invalid_value([FieldError("response_id", message)])
    delete_response(context, view)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _offer(
    context: DoorContext, caller: Caller, body: ResponsesWithTools, deadline: RequestDeadline
) -> AdmittedJob | Yield:
    """Offer the job of a response. Its conversation, which may be long, is not held while its client waits.

    Raises ApiError if the request repeats one whose response was deleted meanwhile.
    """
    with_identity = with_job_identity if body.background else with_refusal_identity
    with ExitStack() as held:
        held.callback(g.references.close)
        request_of_body = replace(
            response_request(context, body, deadline),
            attempt=retry_attempt(),
            return_ticket=return_ticket(body.return_ticket),
            traceparent=traceparent(),
            request_id=g.request_id,
        )
        generation = continued(context, caller.tenant, request_of_body, held)
        verdict = offer(context, caller, with_identity(generation, caller.tenant))
    if body.background and isinstance(verdict, AdmittedJob) and not is_response(verdict.view):
        response_id = PREFIX + verdict.view.id
        raise ApiError("job_not_found", f"this request was answered with response {response_id!r}, which was deleted")
    return verdict


def _find_response(context: DoorContext, response_id: str) -> JobView:
    """Return the job of the caller's response; the read counts as a poll of the job.

    Raises ApiError (404) if the tenant has no such response.
    """
    view = find_response(context, response_id, current_caller().tenant)
    if view is None:
        raise ApiError("job_not_found", f"no response {response_id[:64]!r}")
    return view


def _view_response(view: JobView) -> Response:
    return json_response(response_json(view), headers=job_headers(view))


def _plain(context: DoorContext, view: JobView, deadline: RequestDeadline) -> Response:
    ended = wait_for_result(context, view, deadline, watch_client())
    forget_unstored(context, view)
    return problem_response(ended) if isinstance(ended, ApiError) else _view_response(ended)


def _owner_stream(context: DoorContext, view: JobView, deadline: RequestDeadline) -> Response:
    """Stream the events on the connection that owns the job; if the client disconnects, the job is canceled."""
    client = watch_client()
    items = follow_from_first_text(context, view, deadline, client)
    if isinstance(items, ApiError):
        return problem_response(items)
    frames = _frames(context, ResponseEvents(view), view, _until_lost(context, view, items), client)
    return stream_response(_owning_frames(context, view, frames, client))


def _until_lost(context: DoorContext, view: JobView, items: Iterator[OwnedItem]) -> Iterator[StreamItem]:
    """Yield the items. Raises ApiError if an upstream is lost that has shown a part of the text."""
    has_shown = False
    for item in items:
        if not isinstance(item, JobRequeued):
            has_shown = has_shown or isinstance(item, TextDelta)
            yield item
        elif has_shown and context.pools.resolve_target(view.model, None).forwards:
            raise upstream_lost(view.id).problem


def _reader_stream(context: DoorContext, view: JobView, after: int | None) -> Response:
    """Stream the events to a reader that does not own the job; closing the stream cancels nothing."""
    client = watch_client()
    items = follow_job(
        context,
        view,
        stop=lambda: client.gone() or shutdown.requested.is_set(),
        check_interval_s=READER_CHECK_INTERVAL_S,
    )
    return stream_response(_frames(context, ResponseEvents(view, after), view, items, client))


def _frames(
    context: DoorContext, events: ResponseEvents, view: JobView, items: Iterator[StreamItem], client: ClientWatch
) -> Iterator[str]:
    """Yield the frames, with comments while none arrives; if the items stop before the job's end, yield an error."""
    job_ended = False

    def watch_for_end() -> Iterator[StreamItem]:
        nonlocal job_ended
        for item in items:
            job_ended = isinstance(item, JobEnded)
            yield item

    try:
        yield from with_comments(events.frames(watch_for_end()), context.clock)
        # If this process stops, the stream ends without an error, and the client can resume it at another process.
        if not job_ended and not shutdown.requested.is_set():
            yield events.error_frame(no_end_error(view, client))
    except TextDiverged as diverged:
        yield diverged.frame
    except ApiError as problem:
        yield events.error_frame(problem)


def _owning_frames(context: DoorContext, view: JobView, frames: Iterator[str], client: ClientWatch) -> Iterator[str]:
    """Yield the frames; cancel the job if the stream stops before an event that ends the response."""
    last_event = ""
    try:
        for frame in frames:
            last_event = frame if frame.startswith("event: ") else last_event
            yield frame
    finally:
        if last_event.startswith(_END_EVENTS):
            forget_unstored(context, view)
        else:
            cancel_unless_stopping(context, view, client=client)


_END_EVENTS = tuple(f"event: response.{kind}\n" for kind in ("completed", "incomplete", "failed"))


def _query_bool(name: str) -> bool:
    text = request.args.get(name, "false").lower()
    if text not in {"true", "false", "1", "0"}:
        raise invalid_value([FieldError(name, f"{name}={text[:60]!r} is neither true nor false")])
    return text in {"true", "1"}


def _starting_after() -> int | None:
    text = request.args.get("starting_after")
    if text is None or (text.isascii() and text.isdigit() and len(text) < 12):
        return None if text is None else int(text)
    raise invalid_value(
        [FieldError("starting_after", f"starting_after={text[:60]!r} is not the sequence number of an event")]
    )
