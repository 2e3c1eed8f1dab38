"""Before any route: whether the Host may be ours, and which other origins' pages may read answers."""

from flask import Flask, Response, request

from shared.settings.settings import Settings
from web.http.allowed_names import allowed_hosts, allowed_origins, host_name
from web.http.api_errors import ApiError

#: Probes name a pod by its address, and what these answer is no secret.
_ANY_HOST = frozenset({"/health", "/health/ready"})


_CORS_METHODS = "GET, POST, DELETE, OPTIONS"
_CORS_EXPOSED = "x-request-id, retry-after-ms, retry-after, x-deadline-ms, x-should-retry, location"
#: A browser asks again after ten minutes.
_CORS_MAX_AGE_S = "600"


def install(app: Flask, settings: Settings) -> None:
    """Guard every route of the app. A page that was lured to our address by its own name is sent away (421)."""
    hosts, origins = allowed_hosts(settings), allowed_origins(settings)

    @app.before_request
    def check_host() -> Response | None:
        name = host_name(request.headers.get("Host", ""))
        if "*" not in hosts and name not in hosts and request.path not in _ANY_HOST:
            message = f"Host {name[:80]!r} is not served here (PENSTOCK_ALLOWED_HOSTS)"
            raise ApiError("unknown_host", message, param="Host")
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return Response(status=204)
        return None

    @app.after_request
    def share(response: Response) -> Response:
        origin = request.headers.get("Origin")
        if origins:
            response.vary.add("Origin")
        if origin is not None and ("*" in origins or origin in origins):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _CORS_EXPOSED
            if request.method == "OPTIONS":
                wanted = request.headers.get("Access-Control-Request-Headers", "")
                response.headers["Access-Control-Allow-Methods"] = _CORS_METHODS
                response.headers["Access-Control-Allow-Headers"] = wanted
                response.headers["Access-Control-Max-Age"] = _CORS_MAX_AGE_S
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response
