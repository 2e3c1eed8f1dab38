"""Serve /health, /health/ready and /metrics of the gate on PENSTOCK_GATE_METRICS_LISTEN, if that is set."""

import io
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import gevent
from gevent.pywsgi import Input, WSGIHandler, WSGIServer
from prometheus_client.exposition import make_wsgi_app

from shared.errors import ConfigError, StoreUnavailable
from shared.log import LimitedEvent, get_logger
from shared.probe_connections import ProbeConnections
from shared.version import package_version
from web.gate.server import Gate, format_address
from web.http.api_errors import ApiError, error_response
from web.http.client_address import TrustedProxies
from web.jobs.snapshots import Readiness, readiness_over_cells
from web.runtime.context import DoorContext

log = get_logger()

_FAULT = LimitedEvent("gate.exporter_fault")

#: How many connections are served at once, in all and for one client address. Probes and scrapes need one each.
_MAX_CONNECTIONS, _MAX_PER_ADDRESS = 64, 8
#: How many connections are accepted before those that were accepted have a turn. One that sends its request at once is
#: answered before newer ones can replace it.
_ACCEPTED_AT_ONCE = 4
#: How long a connection may take, from its first byte to the end of its answer, in seconds.
_CONNECTION_S = 10.0


class OneRequestHandler(WSGIHandler):  # type: ignore[misc]  # gevent ships no types
    """Answers one request on each connection, without reading a body, and then closes the connection.

    gevent's own handler would read the rest of a body for as long as bytes arrive. Meanwhile the event loop, and with
    it the gate, would stand still.
    """

    def handle(self) -> None:
        """Serve the connection, and give up after _CONNECTION_S, or when a newer connection needs its place."""
        connections: ProbeConnections[gevent.Greenlet] = self.server.connections
        mine = gevent.getcurrent()
        replaced = connections.add(mine, TrustedProxies().limiting_key(self.client_address[0]) or "")
        if replaced is not None:
            replaced.kill(block=False)
        try:
            with gevent.Timeout(_CONNECTION_S, False):  # noqa: FBT003 - gevent's signature
                super().handle()
        finally:
            connections.remove(mine)

    def get_environ(self) -> dict[str, Any]:
        """Return the WSGI environment of a request without a body."""
        self.server.connections.mark_request(gevent.getcurrent())
        environ: dict[str, Any] = super().get_environ()
        self.close_connection = True
        self.wsgi_input = environ["wsgi.input"] = Input(io.BytesIO(), 0)
        return environ

    def _handle_client_error(self, ex: Exception) -> Any:
        # gevent prints the traceback of a connection that is reset before its request is complete.
        return None if isinstance(ex, OSError) else super()._handle_client_error(ex)

    def _log_error(self, t: type[BaseException], v: BaseException, tb: Any) -> None:
        # gevent prints a traceback also for a client that resets its connection, or reads nothing until _CONNECTION_S.
        if not issubclass(t, (OSError, gevent.Timeout, gevent.GreenletExit)):
            _FAULT.log("error", exc_info=(t, v, tb))


class ProbeServer(WSGIServer):  # type: ignore[misc]  # gevent ships no types
    """A server for probes and scrapes, with a bounded number of connections."""

    max_accept = _ACCEPTED_AT_ONCE

    def __init__(self, address: tuple[str, int], app: Callable[..., Iterable[bytes]]) -> None:
        super().__init__(address, app, log=None, error_log=None, handler_class=OneRequestHandler)
        self.connections: ProbeConnections[gevent.Greenlet] = ProbeConnections(_MAX_CONNECTIONS, _MAX_PER_ADDRESS)


def start_health(context: DoorContext, gate: Gate, address: tuple[str, int]) -> WSGIServer:
    """Start to serve on the address. Raises ConfigError if this process cannot listen on the address."""
    server = ProbeServer(address, wsgi_app(context, gate))
    try:
        server.start()
    except OSError as error:
        raise ConfigError(
            f"PENSTOCK_GATE_METRICS_LISTEN: cannot listen on {format_address(*address)} ({error.strerror})"
        ) from None
    log.info("gate.exporter", address=format_address(*server.address[:2]))
    return server


def wsgi_app(context: DoorContext, gate: Gate) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI app that serves /health, /health/ready and /metrics.

    While the gate is stopping, /health answers 503, so that load balancers send new clients to other gates.
    """
    metrics_app: Callable[..., Iterable[bytes]] = make_wsgi_app(context.metrics.registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return metrics_app(environ, start_response)
        status, body = HTTPStatus.NOT_FOUND, {"error": "the only routes are /health, /health/ready and /metrics"}
        if path == "/health":
            status = HTTPStatus.SERVICE_UNAVAILABLE if gate.stopping else HTTPStatus.OK
            body = {"status": "stopping" if gate.stopping else "ok", "version": package_version()}
        elif path == "/health/ready":
            names = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True).get("model", [None])
            status, body = _readiness(context, gate, names[0])
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        start_response(f"{status.value} {status.phrase}", headers)
        return [json.dumps(body).encode() + b"\n"]

    return app


def _readiness(context: DoorContext, gate: Gate, model: str | None) -> tuple[HTTPStatus, dict[str, Any]]:
    """Return the answer: whether this gate accepts connections and its jobs, or those of the model, are admitted."""
    try:
        readiness = Readiness("stopping", 0) if gate.stopping else readiness_over_cells(context, model)
    except StoreUnavailable as error:
        readiness = Readiness(None, 0, error.fault)
    except ApiError as error:
        return HTTPStatus(error.status), error_response(error).body
    return HTTPStatus.OK if readiness.is_ready else HTTPStatus.SERVICE_UNAVAILABLE, readiness.body()
