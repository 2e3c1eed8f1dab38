"""Who may ask /rq/ for what: operators only, reading only unless enabled, arguments of the shapes we make."""

import re
import secrets

from flask import Flask, Response, g, request

from web.http.api_errors import ApiError
from web.operations.request_caller import require_admin

_QUEUE = re.compile(r"[A-Za-z0-9._-]{1,256}\Z")
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
#: What each argument of a route may be; any other page does not exist. As queue names are plain, the
#: scripts of rq-dashboard may print them raw, which they do.
_SHAPES: dict[str, re.Pattern[str]] = {
    "instance_number": re.compile(r"0\Z"),
    "queue_name": _QUEUE,
    "job_id": _ID,
    "registry_name": re.compile(r"(queued|scheduled|deferred|started|finished|failed|canceled)\Z"),
    "order": re.compile(r"(asc|dsc)\Z"),
    "page": re.compile(r"[1-9][0-9]{0,5}\Z"),
    # What the page itself offers.
    "per_page": re.compile(r"([1-9][0-9]?|1[0-9]{2}|200)\Z"),
}

#: Its scripts compile templates out of strings, so eval stays; event handlers in markup do not run at all.
_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def is_queue_name(name: str) -> bool:
    """Whether a queue of this name has pages; those of tenants do."""
    return _QUEUE.match(name) is not None


def install(app: Flask, prefix: str, *, may_write: bool) -> None:
    """Guard everything below `prefix`, whatever answers there."""
    methods = {"GET", "HEAD"} | ({"POST"} if may_write else set())

    def is_ours() -> bool:
        return request.path == prefix or request.path.startswith(f"{prefix}/")

    @app.before_request
    def guard_dashboard() -> None:
        if not is_ours():
            return
        g.rq_nonce = secrets.token_urlsafe(16)
        require_admin()
        if request.method not in methods:
            why = "" if may_write else "; it only reads unless PENSTOCK_DASHBOARD=write"
            raise ApiError("method_not_allowed", f"the dashboard takes no {request.method}{why}")
        for name, value in (request.view_args or {}).items():
            shape = _SHAPES.get(name)
            # None is a route's own default.
            if shape is not None and value is not None and not shape.match(str(value)):
                raise ApiError("route_not_found", f"{name}={str(value)[:80]!r} has no page", param=name)

    @app.after_request
    def wall_dashboard(response: Response) -> Response:
        if is_ours():
            response.headers["Content-Security-Policy"] = _POLICY.format(nonce=g.get("rq_nonce", ""))
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Referrer-Policy"] = "no-referrer"
        return response
