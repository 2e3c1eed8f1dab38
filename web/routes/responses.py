"""`/v1/responses`: create, read, follow and cancel responses; each is one job, admitted like all other jobs."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any, cast

from apiflask import APIBlueprint
from flask import Response, g, request

from shared.jobs.job import JobView
from web.api.deadline import AnswerMode, RequestDeadline
from web.api.file_search import NO_TEXTS, SearchedFiles, SearchTexts
from web.api.job_json import has_ended, job_headers, route_headers
from web.api.refusals import Yield
from web.http.api_errors import ApiError, invalid, invalid_field
from web.jobs.admission import AdmittedJob
from web.jobs.callers import Caller
from web.jobs.conversations import (
    continued,
    delete_response,
    find_response,
    forget_unstored,
    items_of_input,
    search_texts,
    with_referenced_items,
)
from web.jobs.generation import response_request
from web.jobs.spilling import offer
from web.jobs.tenant_jobs import refresh_job
from web.openai.accepted_fields import unsupported
from web.openai.response_events import ResponseEvents
from web.openai.responses_answers import PREFIX, is_response, response_json, status_of
from web.openai.responses_schema import LOGPROBS, ResponsesWithTools, check_include
from web.request.body import (
    DoorRequest,
    oldest_first,
    page_after,
    page_limit,
    read_deadline,
    with_job_identity,
    with_refusal_identity,
)
from web.request.caller import current_caller
from web.request.owned_calls import answer_owned, reader_stream, with_headers
from web.request.responses import json_response, list_response, name_ignored
from web.retrieval.step import retrieve
from web.runtime.context import DoorContext
from web.runtime.current import current_context

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
    responses={
        200: "The response, or its events as server-sent events",
        503: "A yield: the job was refused; retry after `retry_hint_ms`",
    }
)
def create(body: ResponsesWithTools) -> Response:
    """Create a response, plain, streaming or in the background.

    Without background, closing the connection cancels the job, and a job that does not succeed is answered with the
    same errors as on /v1/chat/completions. With background, the job continues when the connection closes, and the
    `status` of the response shows the job's outcome.
    """
    context, caller = current_context(), current_caller()
    body = _as_served(context, body)
    mode: AnswerMode = "poll" if body.background else "stream" if body.stream else "hold"
    deadline = read_deadline(context.settings, caller.policy, body, mode)
    verdict, texts = _offer(context, caller, body, deadline)
    if body.background and isinstance(verdict, AdmittedJob):
        view = verdict.view
        response = _read(context, view, stream=body.stream)
        response.headers["x-deadline-ms"] = str(deadline.as_admitted(view.deadline_ms).deadline_ms)
    else:
        response = answer_owned(
            context,
            verdict,
            deadline,
            partial(_view_response, texts=texts),
            partial(ResponseEvents, texts=texts) if body.stream else None,
            is_forwarded=lambda view: bool(context.pools.resolve_target(view.model, None).forwards),
            on_end=partial(forget_unstored, context),
        )
    response.headers.update({} if isinstance(verdict, Yield) else route_headers(verdict.view))
    return name_ignored(context, body, response)


@bp.get("/v1/responses/<response_id>")
@bp.doc(
    responses={
        200: "The response, or its events as server-sent events",
        400: "`include` names a field that is not supported, or that was not requested when the response was created",
        404: "This tenant has no such response",
    }
)
def read(response_id: str) -> Response:
    """Read a response, or resume its stream.

    A read counts as a poll of the job. With ?stream=true, the response's events are streamed; with starting_after=N as
    well, only those with a sequence number above N.
    """
    stream, after = _query_bool("stream"), _starting_after()
    if after is not None and not stream:
        raise invalid_field("starting_after", f"starting_after={after} is only valid for a stream; add stream=true")
    context = current_context()
    view = _find_response(context, response_id)
    for name in [*request.args.getlist("include"), *request.args.getlist("include[]")]:
        if check_include(name) and not _has_included(view, name):
            raise unsupported("include", f"{name} must be requested when the response is created")
    return _read(context, view, stream=stream, after=after)


@bp.get("/v1/responses/<response_id>/input_items")
@bp.doc(
    responses={
        200: "One page of items, the newest first",
        404: "This tenant has no such response, or its input is gone",
    }
)
def input_items(response_id: str) -> Response:
    """List the input of a response.

    The items of the whole conversation before the answer, without the instructions. They are kept as long as the
    response.
    """
    limit, after, is_ascending = page_limit(_INPUT_PAGE, _MAX_INPUT_PAGE), page_after(), oldest_first()
    context = current_context()
    view = _find_response(context, response_id)
    with ExitStack() as held:
        items = items_of_input(context, view, held)
        items = items if is_ascending else items[::-1]
        ids = [item["id"] for item in items]
        if after is not None and after not in ids:
            raise invalid("after", after, "the id of an item of this input")
        first = 0 if after is None else ids.index(after) + 1
        page = items[first : first + limit]
        return list_response(page, has_more=first + limit < len(items))


@bp.post("/v1/responses/input_tokens")
@_with_references
@bp.input(ResponsesWithTools, arg_name="body")
@bp.doc(responses={200: "The estimated number of tokens"})
def input_tokens(body: ResponsesWithTools) -> Response:
    """Estimate the tokens of a response's prompt.

    The door has no tokenizer: it estimates the number from the length of the texts and from what the workers of the
    model have measured. No job is created.
    """
    context, caller = current_context(), current_caller()
    body = _as_served(context, body)
    target = context.pools.resolve_target(body.model, caller.policy)
    deadline = read_deadline(context.settings, caller.policy, body, "hold")
    with ExitStack() as held:
        generation = continued(context, caller.tenant, response_request(context, body, deadline), held)
        payload = retrieve(context, caller, generation).payload
        tokens = max(model.estimate(payload) for model in target.models)
    return name_ignored(context, body, json_response({"object": "response.input_tokens", "input_tokens": tokens}))


@bp.post("/v1/responses/<response_id>/cancel")
@bp.doc(responses={200: "The response", 404: "This tenant has no such response"})
def cancel(response_id: str) -> Response:
    """Cancel a response.

    Works like DELETE /v1/jobs/{id}. A response that has already ended is returned unchanged.
    """
    context = current_context()
    view = _find_response(context, response_id)
    context.cancel(view)
    return _read(context, refresh_job(context, view), stream=False)


@bp.delete("/v1/responses/<response_id>")
@bp.doc(responses={200: "What was deleted", 400: "The response has not ended", 404: "This tenant has no such response"})
def delete(response_id: str) -> Response:
    """Delete a response.

    Deletes its text and its request. It can then neither be read nor be continued. A response that has not ended has to
    be canceled first.
    """
    context = current_context()
    view = _find_response(context, response_id)
    if not has_ended(view):
        message = f"response_id={response_id[:64]!r} has the status {status_of(view)}: cancel it before you delete it"
        raise invalid_field("response_id", message)
    delete_response(context, view)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _as_served(context: DoorContext, body: ResponsesWithTools) -> ResponsesWithTools:
    """Return the request, without a search for files if this door has no database. Raises ApiError."""
    return body if context.database is not None else body.without_file_search()


def _offer(
    context: DoorContext, caller: Caller, body: ResponsesWithTools, deadline: RequestDeadline
) -> tuple[AdmittedJob | Yield, SearchTexts]:
    """Offer the job of a response. Return the verdict, and the texts of its search for files.

    Its conversation, which may be long, is not held while its client waits.

    Raises ApiError if the request repeats one whose response was deleted meanwhile.
    """
    with_identity = with_job_identity if body.background else with_refusal_identity
    with ExitStack() as held:
        held.callback(g.references.close)
        request_of_body = with_headers(response_request(context, body, deadline), body.return_ticket)
        generation = continued(context, caller.tenant, request_of_body, held)
        generation = retrieve(context, caller, with_identity(generation, caller.tenant))
        verdict = offer(context, caller, generation)
    if body.background and isinstance(verdict, AdmittedJob) and not is_response(verdict.view):
        response_id = PREFIX + verdict.view.id
        raise ApiError("job_not_found", f"this request was answered with response {response_id!r}, which was deleted")
    has_fewer = isinstance(verdict, AdmittedJob) and bool(verdict.view.fewer)
    fewer = generation.fewer if has_fewer else None
    return verdict, SearchTexts.read(generation.payload if fewer is None else fewer.payload)


def _find_response(context: DoorContext, response_id: str) -> JobView:
    """Return the job of the caller's response; the read counts as a poll of the job.

    Raises ApiError (404) if the tenant has no such response.
    """
    view = find_response(context, response_id, current_caller().tenant)
    if view is None:
        raise ApiError("job_not_found", f"no response {response_id[:64]!r}")
    return view


def _read(context: DoorContext, view: JobView, *, stream: bool, after: int | None = None) -> Response:
    """Return the response as it is now, or its events. Raises ApiError and StoreUnavailable."""
    texts = search_texts(context, view, streams=stream)
    return reader_stream(context, view, ResponseEvents(view, after, texts)) if stream else _view_response(view, texts)


def _has_included(view: JobView, name: str) -> bool:
    """Return whether a response was created with a value of `include`, or has no item that the value is about."""
    if name == LOGPROBS:
        return view.form.get("top_logprobs") is not None
    searched = SearchedFiles.read(view)
    return searched is None or searched.shows_results


def _view_response(view: JobView, texts: SearchTexts = NO_TEXTS) -> Response:
    return json_response(response_json(view, texts), headers=job_headers(view))


def _query_bool(name: str) -> bool:
    text = request.args.get(name, "false").lower()
    if text not in {"true", "false", "1", "0"}:
        raise invalid_field(name, f"{name}={text[:60]!r} is neither true nor false")
    return text in {"true", "1"}


def _starting_after() -> int | None:
    text = request.args.get("starting_after")
    if text is None or (text.isascii() and text.isdigit() and len(text) < 12):
        return None if text is None else int(text)
    raise invalid_field("starting_after", f"starting_after={text[:60]!r} is not the sequence number of an event")
