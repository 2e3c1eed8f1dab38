"""The worker's own /health, /health/ready and /metrics, served on PENSTOCK_WORKER_LISTEN if it is set."""

import contextlib
import io
import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

from shared.errors import ConfigError
from shared.log import LimitedEvent, get_logger
from shared.probe_connections import ProbeConnections

log = get_logger()

_FAULT = LimitedEvent("worker.exporter_fault")

#: Interval at which the server checks whether it was asked to stop.
_POLL_S = 0.1
#: How many connections are served at once, each by a thread, in all and for one client address. Probes and scrapes need
#: one each.
_MAX_CONNECTIONS, _MAX_PER_ADDRESS = 16, 4
#: How long a connection may take in all, in seconds.
_CONNECTION_S = 10.0


class MetricsCollector(Collector):
    """Reads the worker's metrics for each scrape. `read` returns {name: (kind, help text, value)}."""

    def __init__(self, read: Callable[[], dict[str, tuple[str, str, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for name, (kind, text, value) in self._read().items():
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield family(name, text, value=value)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Serves each request on its own daemon thread, so that a slow client delays nothing else.

    There are at most _MAX_CONNECTIONS threads: a further connection replaces one whose client has sent no request. A
    connection that is open for _CONNECTION_S is ended too.
    """

    daemon_threads = True
    #: How many connections the kernel queues while the server starts threads for others.
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self.connections: ProbeConnections[socket.socket] = ProbeConnections(_MAX_CONNECTIONS, _MAX_PER_ADDRESS)
        #: The open connections, with the moment of the monotonic clock at which each is ended.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Make room for the new connection, and return True."""
        replaced = self.connections.add(request, client_address[0])
        with self._lock:
            self._open[request] = time.monotonic() + _CONNECTION_S
            if replaced in self._open:
                _end(replaced)
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was served or ended."""
        self.connections.remove(request)
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that have been open for too long; this runs every _POLL_S."""
        now_s = time.monotonic()
        with self._lock:
            for connection in [connection for connection, until_s in self._open.items() if now_s > until_s]:
                _end(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Log a fault of the server; the errors of connections are the clients' matter."""
        error = sys.exception()
        if not isinstance(error, OSError):
            _FAULT.log("error", exc_info=error)


def _end(connection: socket.socket) -> None:
    """Let the thread that serves the connection get the end of the stream, so that it closes the connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    """Handles requests without logging them."""

    #: Seconds after which the connection of a client that sends nothing is closed.
    timeout = _CONNECTION_S

    def get_environ(self) -> dict[str, Any]:
        """Return the WSGI environment of a request that has arrived."""
        if isinstance(self.server, _Server):
            self.server.connections.mark_request(self.connection)
        return super().get_environ()

    def get_stderr(self) -> Any:
        """Return where the base class writes tracebacks, such as that of a client that reads nothing: nowhere."""
        return io.StringIO()

    def log_message(self, *_args: Any) -> None:
        """Log nothing."""


class Exporter:
    """The HTTP server. It starts before the model is loaded, so that a worker can be monitored while it starts."""

    def __init__(
        self, host: str, port: int, state: Callable[[], str], read: Callable[[], dict[str, tuple[str, str, float]]]
    ) -> None:
        registry = CollectorRegistry()
        registry.register(MetricsCollector(read))
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._state = state
        try:
            self._server = make_server(host, port, self._respond, _Server, _QuietHandler)
        except OSError as error:
            raise ConfigError(f"PENSTOCK_WORKER_LISTEN: cannot listen on {host}:{port} ({error.strerror})") from error
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(_POLL_S,), name="exporter", daemon=True)

    def start(self) -> None:
        self._thread.start()
        host, port = self._server.server_address[:2]
        log.info("worker.exporter", address=f"{host!s}:{port}")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _respond(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            try:
                return self._metrics(environ, start_response)
            except Exception as error:
                _FAULT.log("error", exc_info=error)
                raise
        status, body = HTTPStatus.NOT_FOUND, {"error": "only /health, /health/ready and /metrics exist here"}
        if path in {"/health", "/health/ready"}:
            state = self._state()
            claims = state == "serving" or path == "/health"
            status, body = HTTPStatus.OK if claims else HTTPStatus.SERVICE_UNAVAILABLE, {"status": state}
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
        return [json.dumps(body).encode() + b"\n"]
