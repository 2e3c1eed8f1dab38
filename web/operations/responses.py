"""Values → HTTP responses."""

import json
from collections.abc import Mapping
from typing import Any

from flask import Response

from shared.jobs.job import JobView
from web.api.job_json import has_ended, job_headers, job_json
from web.api.refusals import Yield, store_away
from web.http.api_errors import ApiError, error_response
from web.runtime.context import DoorContext

#: An answer is written piece by piece, in characters: a client that reads slowly has as long for each of them as it
#: may be silent (web/gunicorn_worker.py).
_PIECE = 16_384


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Compact JSON in UTF-8; answers are nobody's to keep."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    response = Response(pieces, status=status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    response.headers.extend(headers or {})
    return response


def job_response(
    view: JobView, *, submitted: bool = False, ticket: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """A job. Submitted: 202 with its place, 200 when it has already ended."""
    extra = {"Location": f"/v1/jobs/{view.id}"} if submitted else {}
    status = 202 if submitted and not has_ended(view) else 200
    return json_response(job_json(view, ticket), status, job_headers(view) | extra | dict(headers or {}))


def yield_response(refusal: Yield) -> Response:
    """A refusal."""
    return json_response(refusal.body, refusal.status, refusal.headers)


def problem_response(problem: ApiError) -> Response:
    """An error object."""
    given = error_response(problem)
    return json_response(given.body, given.status, given.headers)


def store_away_response(context: DoorContext) -> Response:
    """The refusal that needs no store."""
    context.metrics.storeless.inc()
    return yield_response(store_away())
