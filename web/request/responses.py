"""Build Flask responses from jobs, refusals, errors and frames."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from flask import Response, g, render_template, request
from pydantic_core import PydanticSerializationError, to_json

from shared.clock import Clock
from shared.jobs.job import JobView
from shared.store_fault import StoreFault
from web.anthropic.error_shape import ROUTES as ANTHROPIC_ROUTES
from web.anthropic.error_shape import anthropic_error, follows_anthropic
from web.api.body import NotesIgnored
from web.api.job_json import has_ended, job_headers, job_json
from web.api.refusals import Yield, store_unavailable_yield
from web.api.stream_format import COMMENT
from web.http.api_errors import OPENAI_STATUS, ApiError, error_response
from web.runtime.context import DoorContext

#: A body is written to the socket in chunks of this many bytes. The socket timeout (web/server/worker.py)
#: applies to each chunk and not to the whole body, so that a client that reads slowly can still receive a long body.
_CHUNK_BYTES = 16_384
#: The groups of routes that answer an invalid request with 400, as OpenAI's and Anthropic's API do, by the names of
#: their blueprints.
_INVALID_IS_400 = frozenset({"batches", "files", "openai", "responses", "vector_stores", ANTHROPIC_ROUTES})
#: The paths under which the pages for operators are.
_PAGES_OF_OPERATORS = ("/console", "/rq")
_PAGE_HEADERS = {"Cache-Control": "no-store", "Vary": "Accept"}


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose body is compact JSON in UTF-8 and a newline, with a header that forbids caching."""
    try:
        data = to_json(body) + b"\n"
    except PydanticSerializationError:
        # It is nested more deeply than that: an upstream may have sent it, and a job that succeeded must be readable.
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    chunks = [data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES)]
    fields = {"Cache-Control": "no-store", **(headers or {})}
    return Response(chunks, status=status, headers=list(fields.items()), content_type="application/json")


def list_response(items: list[dict[str, Any]], *, has_more: bool) -> Response:
    """Return a response with one page of a list, as OpenAI's API writes lists."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return json_response({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more})


def job_response(
    view: JobView, *, submitted: bool = False, ticket: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with the job's JSON.

    With `submitted`, the response has a Location header with the job's path, and its status is 202 unless the job has
    already ended.
    """
    location = {"Location": f"/v1/jobs/{view.id}"} if submitted else {}
    status = 202 if submitted and not has_ended(view) else 200
    return json_response(job_json(view, ticket), status, job_headers(view) | location | dict(headers or {}))


def yield_response(refusal: Yield) -> Response:
    """Return the response for a refusal."""
    return _failure_response(refusal.body, refusal.status, refusal.headers)


def problem_response(problem: ApiError) -> Response:
    """Return the response for an error, with the status that it has on the route of the current request."""
    error = error_response(problem)
    status = OPENAI_STATUS.get(problem.code, error.status) if request.blueprint in _INVALID_IS_400 else error.status
    return _failure_response(error.body, status, error.headers)


def _failure_response(body: dict[str, Any], status: int, headers: Mapping[str, str]) -> Response:
    if follows_anthropic(request.blueprint, request.path):
        body = anthropic_error(body, status, g.request_id)
        # The header in which Anthropic's clients look for the request's id.
        headers = {**headers, "request-id": g.request_id}
    return json_response(body, status, headers)


def store_away_response(context: DoorContext, fault: StoreFault) -> Response:
    """Return the refusal to send while the store cannot serve, and count it in the metrics.

    A browser that opens a page for operators gets a page instead, which says why and tries again by itself.
    """
    context.metrics.refused_without_store.inc()
    refusal = store_unavailable_yield(fault)
    if not _wants_page():
        return yield_response(refusal)
    page = render_template("console/store_away.html", fault=fault)
    headers = {name: value for name, value in refusal.headers.items() if name == "Retry-After"}
    return Response(page, refusal.status, _PAGE_HEADERS | headers)


def fault_response() -> Response:
    """Return the response for an error of the door itself, with status 500: a page where a browser opens one."""
    problem = ApiError("internal_error", "the door failed to handle this request; its log contains the reason")
    if not _wants_page():
        return problem_response(problem)
    return Response(render_template("console/fault.html", request_id=g.get("request_id")), 500, _PAGE_HEADERS)


def _wants_page() -> bool:
    """Return whether a browser opens a page for operators: no script of a page asks, and no program."""
    path = request.path
    is_for_operators = any(path == prefix or path.startswith(f"{prefix}/") for prefix in _PAGES_OF_OPERATORS)
    accepted = request.accept_mimetypes
    wants_html = accepted["text/html"] > accepted["application/json"]
    return is_for_operators and request.method in {"GET", "HEAD"} and wants_html and "HX-Request" not in request.headers


HEADER = "x-penstock-ignored"


def name_ignored(context: DoorContext, body: NotesIgnored, response: Response) -> Response:
    """Name the ignored fields of a body in the response's header and count them. Returns the response."""
    if body.ignored:
        response.headers[HEADER] = ", ".join(body.ignored)
        route = request.url_rule.rule if request.url_rule else "unknown"
        with suppress(Exception):
            for name in body.ignored:
                context.metrics.ignored_fields.labels(route, name).inc()
    return response


#: After this many seconds without a frame, a comment is sent. The time is shorter than the idle timeout of common
#: proxies, and the comment shows the client that the connection still works.
COMMENT_S = 5.0
#: The first header prevents caching, and the second one prevents nginx from buffering the frames.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def with_comments(frames: Iterable[str], clock: Clock, comment: str = COMMENT) -> Iterator[str]:
    """Yield the frames that are not empty, and `comment` whenever nothing was sent for COMMENT_S seconds.

    The source must yield an empty frame from time to time while it has nothing to send.
    """
    written_s = clock.monotonic()
    for text in frames:
        if text:
            yield text
        elif clock.monotonic() - written_s >= COMMENT_S:
            yield comment
        else:
            continue
        written_s = clock.monotonic()


def stream_response(frames: Iterator[str]) -> Response:
    """Return a response that sends the frames as they are produced."""
    return Response(frames, mimetype="text/event-stream", headers=_HEADERS)
