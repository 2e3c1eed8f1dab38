"""The gate's own /health and /metrics, served on PENSTOCK_GATE_METRICS_LISTEN when it is set."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from gevent.pywsgi import WSGIServer
from prometheus_client.exposition import make_wsgi_app

from shared.errors import ConfigError
from web.gate.server import Gate, shown
from web.http.process_metrics import package_version
from web.runtime.context import DoorContext

log = structlog.get_logger()


def start_health(context: DoorContext, gate: Gate, address: tuple[str, int]) -> WSGIServer:
    """Serve the address. Raises ConfigError when it cannot be had."""
    server = WSGIServer(address, wsgi_app(context, gate), log=None, error_log=None)
    try:
        server.start()
    except OSError as error:
        raise ConfigError(
            f"PENSTOCK_GATE_METRICS_LISTEN={shown(*address)} cannot be listened on: {error.strerror}"
        ) from None
    log.info("gate.exporter", address=shown(*server.address[:2]))
    return server


def wsgi_app(context: DoorContext, gate: Gate) -> Callable[..., Iterable[bytes]]:
    """Both routes. A gate that is about to stop is not healthy: balancers send their clients elsewhere."""
    scrape: Callable[..., Iterable[bytes]] = make_wsgi_app(context.metrics.scrape_registry())

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            context.metrics.followed.set(context.event_hub.followed)
            return scrape(environ, start_response)
        status, body = "404 Not Found", {"error": "only /health and /metrics are here"}
        if path == "/health":
            status = "503 Service Unavailable" if gate.stopping else "200 OK"
            body = {"status": "stopping" if gate.stopping else "ok", "version": package_version()}
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps(body).encode()]

    return app
