"""Before any route: whether the Host may be ours, and which other origins' pages may read answers."""

import ipaddress
import re
from urllib.parse import urlsplit

from flask import Flask, Response, request

from shared.config import Settings
from shared.errors import ConfigError
from web.problems import Problem

LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Probes name a pod by its address, and what these answer is no secret.
_ANY_HOST = frozenset({"/health", "/health/ready"})

#: A name, an IPv4 address, or an IPv6 address with or without its brackets.
_HOST = re.compile(r"[a-z0-9._-]+|\[?[0-9a-f:.]*:[0-9a-f:.]*\]?")
#: As browsers send it: what an app's own pages have as theirs is one, too (tauri://localhost).
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")

_CORS_METHODS = "GET, POST, DELETE, OPTIONS"
_CORS_EXPOSED = "x-request-id, retry-after-ms, retry-after, x-deadline-ms, x-should-retry, location"
#: A browser asks again after ten minutes.
_CORS_MAX_AGE_S = "600"


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """Host names that requests may name, lower case; `*` allows all. Unset: the loopback names.

    Raises ConfigError for what no request could name.
    """
    named = [host.strip().lower() for host in settings.allowed_hosts.split(",") if host.strip()]
    for host in named:
        if host != "*" and not _HOST.fullmatch(host):
            raise ConfigError(
                f"PENSTOCK_ALLOWED_HOSTS={settings.allowed_hosts!r} holds {host!r}, which is no host's name or "
                "address: no scheme, no port, no pattern but * alone"
            )
    return frozenset(host.strip("[]") for host in named or LOOPBACK)


def allowed_origins(settings: Settings) -> frozenset[str]:
    """Origins whose pages may read answers; `*` allows all. Raises ConfigError for what is none of a page."""
    named = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    for origin in named:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"PENSTOCK_CORS_ORIGINS={settings.cors_origins!r} holds {origin!r}, which is no origin: "
                "https://name or https://name:port in lower case, no path, no pattern but * alone"
            )
    return frozenset(named)


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, lower case; "" when it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def install(app: Flask, settings: Settings) -> None:
    """Guard every route of the app. A page that was lured to our address by its own name is sent away (421)."""
    hosts, origins = allowed_hosts(settings), allowed_origins(settings)

    @app.before_request
    def check_host() -> Response | None:
        name = host_name(request.headers.get("Host", ""))
        if "*" not in hosts and name not in hosts and request.path not in _ANY_HOST:
            message = f"Host {name[:80]!r} is not served here (PENSTOCK_ALLOWED_HOSTS)"
            raise Problem("unknown_host", message, param="Host")
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
