"""The worker's own /health and /metrics, served on PENSTOCK_WORKER_LISTEN when it is set."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

from shared.errors import ConfigError

log = structlog.get_logger()

#: How often the server looks whether it is to stop.
_LOOK_S = 0.1


class Figures(Collector):
    """Reads the worker's figures when somebody scrapes; `read` answers name → (kind, help, value)."""

    def __init__(self, read: Callable[[], dict[str, tuple[str, str, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """One family each."""
        for name, (kind, text, value) in self._read().items():
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield family(name, text, value=value)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A slow scraper holds up nobody, and nobody waits for it at the end."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Scrapes are no events."""

    #: A client that says nothing for this long is cut off, in seconds.
    timeout = 10

    def log_message(self, *_args: Any) -> None:
        """Write nothing."""


class Exporter:
    """The address's server; up before the model is loaded, so that a start can be watched."""

    def __init__(
        self, host: str, port: int, state: Callable[[], str], read: Callable[[], dict[str, tuple[str, str, float]]]
    ) -> None:
        registry = CollectorRegistry()
        registry.register(Figures(read))
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._state = state
        try:
            self._server = make_server(host, port, self._answer, _Server, _Quiet)
        except OSError as error:
            raise ConfigError(f"PENSTOCK_WORKER_LISTEN={host}:{port} cannot be listened on: {error}") from error
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(_LOOK_S,), name="exporter", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        host, port = self._server.server_address[:2]
        log.info("worker.exporter", address=f"{host!s}:{port}")

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        known = path == "/health"
        said = {"status": self._state()} if known else {"error": "only /health and /metrics are here"}
        start_response("200 OK" if known else "404 Not Found", [("Content-Type", "application/json")])
        return [json.dumps(said).encode()]
