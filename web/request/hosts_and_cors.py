"""Check the Host header of every request, and add CORS headers for the allowed origins to responses."""

from flask import Flask, Response, request

from shared.settings.door import DoorSettings
from web.http.allowed_names import allowed_hosts, allowed_origins, host_name
from web.http.api_errors import ApiError
from web.http.connection_bounds import PROBE_PATHS
from web.runtime.current import current_request

_CORS_METHODS = "GET, POST, PUT, DELETE, OPTIONS"
_CORS_EXPOSED = (
    "x-request-id, request-id, retry-after-ms, retry-after, x-deadline-ms, x-should-retry, x-penstock-return-ticket, "
    "x-penstock-route, x-penstock-ignored, location"
)
#: How long a browser may reuse the response to a preflight request: ten minutes, in seconds.
_CORS_MAX_AGE_S = "600"


def install(app: Flask, settings: DoorSettings) -> None:
    """Register the Host check and the CORS headers for every route of the app.

    A request whose Host is not allowed is answered with 421. This prevents DNS rebinding, an attack in which a web page
    makes its own host name resolve to the door's address.
    """
    hosts, origins = allowed_hosts(settings), allowed_origins(settings)
    any_host = "*" in hosts

    @app.before_request
    def check_host() -> Response | None:
        incoming = current_request()
        host = incoming.environ.get("HTTP_HOST", "")
        name = host_name(host)
        if any_host and host and not name:
            raise ApiError("invalid_request", f"Host {host[:80]!r} is not a name or address with a port", param="Host")
        # Health probes address a pod by its IP address, and the responses to them contain no secrets.
        if not any_host and name not in hosts and incoming.path not in PROBE_PATHS:
            message = f"Host {host[:80]!r} is not served here (PENSTOCK_ALLOWED_HOSTS)"
            raise ApiError("unknown_host", message, param="Host")
        if incoming.method == "OPTIONS" and "Access-Control-Request-Method" in incoming.headers:
            return Response(status=204)
        return None

    @app.after_request
    def add_cors_headers(response: Response) -> Response:
        origin = request.environ.get("HTTP_ORIGIN")
        if origins:
            response.vary.add("Origin")
        if origin is not None and ("*" in origins or origin in origins):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _CORS_EXPOSED
            if request.method == "OPTIONS":
                requested = request.headers.get("Access-Control-Request-Headers", "")
                response.headers["Access-Control-Allow-Methods"] = _CORS_METHODS
                response.headers["Access-Control-Allow-Headers"] = requested
                response.headers["Access-Control-Max-Age"] = _CORS_MAX_AGE_S
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response
