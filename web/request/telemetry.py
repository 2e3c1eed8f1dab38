"""Give each request an id and a span, add the id to the log context, and count and time responses."""

import re
import secrets
from contextlib import suppress

from flask import Flask, Request, Response, g, request

from shared.log import bind_request, get_logger
from shared.tracing.names import Attribute, SpanName
from shared.tracing.spans import Traces
from web.http.api_errors import is_api_path
from web.http.process_metrics import ProcessMetrics
from web.request.open_requests import call_when_answered
from web.runtime.current import current_request

log = get_logger()

#: The request ids that a proxy or a client may choose; any other id is replaced by a random one.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=+/-]{1,128}\Z")
#: A W3C trace context with the four fields of version 00. Later versions begin with the same four fields.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
#: The possible values of the metric label `method`. A client can send any other method, which is labeled `other`.
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


def client_request_id() -> str | None:
    """Return the request id that the client or a proxy sent, or None if the header is missing or invalid."""
    text = request.environ.get("HTTP_X_REQUEST_ID", "")
    return text if text and _REQUEST_ID.match(text) else None


def traceparent() -> str:
    """Return the context of the span that the door writes about this request; without one, the one that was sent.

    Returns "" if no valid context was sent either.
    """
    written = g.get("traceparent")
    if written is not None:
        return str(written)
    text = request.environ.get("HTTP_TRACEPARENT", "")
    return text if text and _TRACEPARENT.match(text) else ""


def install(app: Flask, metrics: ProcessMetrics, traces: Traces) -> None:
    """Register the handlers that run before and after each request. Errors in metrics do not affect the request.

    A span is written about each request that may submit a job, until its answer was sent.
    """

    @app.before_request
    def begin() -> None:
        request_id, sent = client_request_id() or secrets.token_hex(16), traceparent()
        g.began_s, g.request_id = metrics.clock.monotonic(), request_id
        bind_request(request_id=request_id, **({"traceparent": sent} if sent else {}))
        if traces.is_on and request.method == "POST" and is_api_path(request.path):
            attributes = {Attribute.METHOD: "POST", Attribute.ROUTE: _route(current_request())}
            g.span = traces.begin(SpanName.REQUEST, sent, attributes, serves=True)
            g.traceparent = g.span.traceparent
            call_when_answered(g.span.end)

    @app.after_request
    def end(response: Response) -> Response:
        if traces.is_on and "span" in g:
            g.span.set({Attribute.STATUS: response.status_code})
        response.headers["x-request-id"] = g.get("request_id") or secrets.token_hex(16)
        with suppress(Exception):
            incoming, status = current_request(), response.status_code
            route = _route(incoming)
            took_s = metrics.clock.monotonic() - g.began_s
            method = incoming.method if incoming.method in _METHODS else "other"
            metrics.count_request(route, method, status, took_s)
            log.debug("http", route=route, method=method, status=status, ms=round(took_s * 1000))
        return response


def _route(incoming: Request) -> str:
    return incoming.url_rule.rule if incoming.url_rule else "unknown"
