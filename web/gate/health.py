"""Serve the gate's /health and /metrics over HTTP, on the address in PENSTOCK_GATE_METRICS_LISTEN if that is set."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from gevent.pywsgi import WSGIServer
from prometheus_client.exposition import make_wsgi_app

from shared.errors import ConfigError
from web.gate.server import Gate, format_address
from web.http.process_metrics import package_version
from web.runtime.context import DoorContext

log = structlog.get_logger()


def start_health(context: DoorContext, gate: Gate, address: tuple[str, int]) -> WSGIServer:
    """Start to serve on the address. Raises ConfigError if this process cannot listen on the address."""
    server = WSGIServer(address, wsgi_app(context, gate), log=None, error_log=None)
    try:
        server.start()
    except OSError as error:
        raise ConfigError(
            f"PENSTOCK_GATE_METRICS_LISTEN: cannot listen on {format_address(*address)} ({error.strerror})"
        ) from None
    log.info("gate.exporter", address=format_address(*server.address[:2]))
    return server


def wsgi_app(context: DoorContext, gate: Gate) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI app that serves /health and /metrics.

    While the gate is stopping, /health answers 503, so that load balancers send new clients to other gates.
    """
    metrics_app: Callable[..., Iterable[bytes]] = make_wsgi_app(context.metrics.scrape_registry())

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            context.metrics.followed_jobs.set(context.event_hub.followed)
            return metrics_app(environ, start_response)
        status, body = "404 Not Found", {"error": "the only routes are /health and /metrics"}
        if path == "/health":
            status = "503 Service Unavailable" if gate.stopping else "200 OK"
            body = {"status": "stopping" if gate.stopping else "ok", "version": package_version()}
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps(body).encode()]

    return app
