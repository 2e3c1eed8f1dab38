"""Serve the gate's /health and /metrics over HTTP, on the address in PENSTOCK_GATE_METRICS_LISTEN if that is set."""

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import gevent
import structlog
from gevent.pool import Pool
from gevent.pywsgi import Input, WSGIHandler, WSGIServer
from prometheus_client.exposition import make_wsgi_app

from shared.errors import ConfigError
from web.gate.server import Gate, format_address
from web.http.process_metrics import package_version
from web.runtime.context import DoorContext

log = structlog.get_logger()

#: How many connections are served at once; further ones wait. Probes and scrapes need one each.
_MAX_CONNECTIONS = 64
#: How long a connection may take, from its first byte to the end of its answer, in seconds.
_CONNECTION_S = 10.0


class OneRequestHandler(WSGIHandler):  # type: ignore[misc]  # gevent ships no types
    """Answers one request on each connection, without reading a body, and then closes the connection.

    gevent's own handler would read the rest of a body for as long as bytes arrive. Meanwhile the event loop, and with
    it the gate, would stand still.
    """

    def handle(self) -> None:
        """Serve the connection, and give up after _CONNECTION_S."""
        with gevent.Timeout(_CONNECTION_S, False):  # noqa: FBT003 - gevent's signature
            super().handle()

    def get_environ(self) -> dict[str, Any]:
        """Return the WSGI environment of a request without a body."""
        environ: dict[str, Any] = super().get_environ()
        self.close_connection = True
        self.wsgi_input = environ["wsgi.input"] = Input(io.BytesIO(), 0)
        return environ


def make_server(address: tuple[str, int], app: Callable[..., Iterable[bytes]]) -> WSGIServer:
    """Return a server for probes and scrapes, which is not yet started."""
    pool = Pool(_MAX_CONNECTIONS)
    return WSGIServer(address, app, log=None, error_log=None, handler_class=OneRequestHandler, spawn=pool)


def start_health(context: DoorContext, gate: Gate, address: tuple[str, int]) -> WSGIServer:
    """Start to serve on the address. Raises ConfigError if this process cannot listen on the address."""
    server = make_server(address, wsgi_app(context, gate))
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
