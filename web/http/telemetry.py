"""Request id, log binding, and the metrics of this process. A failing metric never fails a request."""

import re
import secrets
from contextlib import suppress

import structlog
from flask import Flask, Response, g, request

from web.http.process_metrics import ProcessMetrics

log = structlog.get_logger()

#: What a proxy or a client may call a request; anything else is replaced.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=+/-]{1,128}\Z")
#: W3C trace context, version 00; other versions begin alike.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
#: A client may invent methods; a label may not follow it.
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


def client_request_id() -> str | None:
    """The request id that came with the request, if it is a fit one."""
    text = request.headers.get("x-request-id", "")
    return text if _REQUEST_ID.match(text) else None


def traceparent() -> str:
    """The trace context that came with the request, or ""."""
    text = request.headers.get("traceparent", "")
    return text if _TRACEPARENT.match(text) else ""


def install(app: Flask, metrics: ProcessMetrics) -> None:
    """Give every request an id, bind it to the log, count and time every answer."""

    @app.before_request
    def begin() -> None:
        g.began_s = metrics.clock.monotonic()
        g.request_id = client_request_id() or secrets.token_hex(16)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=g.request_id)
        if traceparent():
            structlog.contextvars.bind_contextvars(traceparent=traceparent())

    @app.after_request
    def end(response: Response) -> Response:
        response.headers["x-request-id"] = g.get("request_id") or secrets.token_hex(16)
        with suppress(Exception):
            route = request.url_rule.rule if request.url_rule else "unknown"
            took_s = metrics.clock.monotonic() - g.began_s
            method = request.method if request.method in _METHODS else "other"
            metrics.requests.labels(route, method, str(response.status_code)).inc()
            metrics.seconds.labels(route, method).observe(took_s)
            log.debug("http", route=route, method=method, status=response.status_code, ms=round(took_s * 1000))
        return response
