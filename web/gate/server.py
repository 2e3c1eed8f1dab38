"""The gate's listening socket, its connections, and its stop, which cancels nothing."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import structlog
from gevent.pool import Pool
from gevent.server import StreamServer
from prometheus_client import Counter, Gauge

from shared import metrics as rows
from shared.errors import ConfigError
from shared.settings.settings import Settings
from web.gate.connection import Bounds, Connection
from web.runtime.context import DoorContext

log = structlog.get_logger()

#: Idle clients hold a place each, and thousands of them must not keep others out; as many as an ingress has.
MOST_CONNECTIONS = 10_000
#: As the HTTP door's calls: what runs may still end well; the rest is told by HTTP.
GRACE_S = 30.0
#: Connections that the kernel keeps while they are taken one by one; Linux caps it at somaxconn.
_BACKLOG = 4_096
#: How often a stop looks whether the last connection has ended.
_LOOK_S = 0.02
#: A client whose machine is gone says nothing: it is asked after this silence, in seconds, then three times more.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def bounds_of(settings: Settings) -> Bounds:
    """What one connection may take, as the settings say."""
    return Bounds(
        frame_bytes=settings.max_body_bytes,
        frame_s=settings.gate_frame_ms / 1000,
        idle_s=settings.gate_idle_ms / 1000,
        jobs=settings.gate_max_frames,
    )


class GateMetrics:
    """Counts of one gate, among the process's metrics."""

    def __init__(self, context: DoorContext) -> None:
        registry = context.metrics.registry
        frames, connections = rows.GATE_FRAMES, rows.GATE_CONNECTIONS
        self._frames = Counter(frames.name, frames.help, frames.labels, registry=registry)
        self.connections = Gauge(connections.name, connections.help, registry=registry)

    def count(self, status: str) -> None:
        """A frame was answered; a failing metric never fails it."""
        with suppress(Exception):
            self._frames.labels(status).inc()


class Gate:
    """Serves the address from `start` on. `start` and `stop` are the main thread's."""

    def __init__(self, context: DoorContext, address: tuple[str, int], bounds: Bounds) -> None:
        self._context, self._bounds, self._clock = context, bounds, context.clock
        self._metrics = GateMetrics(context)
        self._connections: set[Connection] = set()
        self._server = StreamServer(address, self._serve, spawn=Pool(MOST_CONNECTIONS), backlog=_BACKLOG)
        self.stopping = False

    def start(self) -> None:
        """Listen. Raises ConfigError when the address cannot be had."""
        host, port = self._server.address[:2]
        try:
            self._server.start()
        except OSError as error:
            raise ConfigError(f"PENSTOCK_GATE_LISTEN={host}:{port} cannot be listened on: {error.strerror}") from None
        log.info("gate.listens", address=shown(*self._server.address[:2]))

    def stop(self, grace_s: float, impatient: Callable[[], bool]) -> None:
        """Take nothing new, let what is in flight end for so long, then leave it: its jobs live on in the store."""
        self.stopping = True
        self._server.close()
        for connection in list(self._connections):
            connection.wind_down()
        self._until_none(grace_s, impatient)
        left = list(self._connections)
        for connection in left:
            connection.leave()
        self._until_none(self._bounds.frame_s, impatient)
        log.info("gate.stopped", cut_short=len(left))

    def _serve(self, sock: socket.socket, _address: object) -> None:
        _keep_alive(sock)
        connection = Connection(self._context, sock, self._bounds, self._metrics.count)
        self._connections.add(connection)
        self._metrics.connections.inc()
        try:
            connection.serve()
        finally:
            self._metrics.connections.dec()
            self._connections.discard(connection)

    def _until_none(self, most_s: float, impatient: Callable[[], bool]) -> None:
        until_s = self._clock.monotonic() + most_s
        rest = threading.Event()
        while self._connections and self._clock.monotonic() < until_s and not impatient():
            rest.wait(_LOOK_S)


def shown(host: str, port: int) -> str:
    """An address as one would type it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _keep_alive(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A short frame is not kept back for a longer one.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
