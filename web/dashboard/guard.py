"""Check each request to /rq/: only operators have access, and writes are rejected unless a setting allows them."""

import re
import secrets

from flask import Flask, Response, g, request

from web.http.api_errors import ApiError
from web.request.caller import require_admin
from web.runtime.current import current_request

_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}\Z")
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
#: The pattern that each route argument must match; any other value is answered with 404. Queue names may contain only
#: characters that need no escaping, because rq-dashboard's scripts insert these names into HTML unescaped.
_ARGUMENT_PATTERNS: dict[str, re.Pattern[str]] = {
    "instance_number": re.compile(r"0\Z"),
    "queue_name": _QUEUE_NAME,
    "job_id": _JOB_ID,
    "registry_name": re.compile(r"(queued|scheduled|deferred|started|finished|failed|canceled)\Z"),
    "order": re.compile(r"(asc|dsc)\Z"),
    "page": re.compile(r"[1-9][0-9]{0,5}\Z"),
    # A number from 1 to 200, the range that the input field on rq-dashboard's page allows.
    "per_page": re.compile(r"([1-9][0-9]?|1[0-9]{2}|200)\Z"),
}

#: rq-dashboard's scripts compile templates from strings, which requires 'unsafe-eval'. Event handlers in HTML
#: attributes are blocked.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def is_queue_name(name: str) -> bool:
    """Return whether the dashboard shows a queue with this name. It shows all names that a tenant's queue can have."""
    return _QUEUE_NAME.match(name) is not None


def install(app: Flask, prefix: str, *, may_write: bool) -> None:
    """Check every request for a path under `prefix`, and add security headers to the responses to these requests."""
    methods = {"GET", "HEAD"} | ({"POST"} if may_write else set())

    def is_dashboard_request() -> bool:
        path = current_request().path
        return path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in {"", "/"}

    @app.before_request
    def guard_dashboard() -> None:
        if not is_dashboard_request():
            return
        g.rq_nonce = secrets.token_urlsafe(16)
        require_admin()
        if request.method not in methods:
            advice = "" if may_write else "; set PENSTOCK_DASHBOARD=write to enable its buttons"
            raise ApiError("method_not_allowed", f"the dashboard does not allow {request.method}{advice}")
        for name, value in (request.view_args or {}).items():
            pattern = _ARGUMENT_PATTERNS.get(name)
            # rq-dashboard's routes give an argument the value None if the path does not contain it.
            if pattern is not None and value is not None and not pattern.match(str(value)):
                raise ApiError("route_not_found", f"no page has {name}={str(value)[:80]!r}", param=name)

    @app.after_request
    def add_security_headers(response: Response) -> Response:
        if is_dashboard_request():
            policy = _CONTENT_SECURITY_POLICY.format(nonce=g.get("rq_nonce", ""))
            response.headers["Content-Security-Policy"] = policy
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Referrer-Policy"] = "no-referrer"
        return response
