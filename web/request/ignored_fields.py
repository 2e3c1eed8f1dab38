"""Tell clients and operators which fields of a request were accepted without effect."""

from contextlib import suppress

from flask import Response, request

from web.api.ignored import NotesIgnored
from web.runtime.context import DoorContext

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
