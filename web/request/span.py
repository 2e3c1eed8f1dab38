"""Writes a span about each request that may submit a job, until its answer was sent."""

from flask import Flask, Response, g, request

from shared.tracing.names import Attribute, SpanName
from shared.tracing.traces import Traces
from web.http.api_paths import is_api_path
from web.request import telemetry
from web.request.open_requests import call_when_answered


def install(app: Flask, traces: Traces) -> None:
    """Begin the spans of this app's requests; it must be called after telemetry.install."""
    if not traces.is_on:
        return

    @app.before_request
    def begin() -> None:
        if request.method != "POST" or not is_api_path(request.path):
            return
        route = request.url_rule.rule if request.url_rule else "unknown"
        attributes = {Attribute.METHOD: "POST", Attribute.ROUTE: route}
        g.span = traces.begin(SpanName.REQUEST, telemetry.traceparent(), attributes, serves=True)
        g.traceparent = g.span.traceparent
        call_when_answered(g.span.end)

    @app.after_request
    def set_status(response: Response) -> Response:
        if "span" in g:
            g.span.set({Attribute.STATUS: response.status_code})
        return response
