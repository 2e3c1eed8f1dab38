"""The gate's server: accept connections, and stop without canceling any job."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from gevent.server import StreamServer

from shared.errors import ConfigError
from shared.log import get_logger
from shared.metrics import process as specs
from web.gate.answers import error_frame, to_line
from web.gate.connection import Bounds, Connection
from web.gate.connection_table import ConnectionTable, GateBound
from web.gate.requests import BadFrame
from web.gate.stranger_budget import StrangerBudget
from web.jobs.snapshots import can_no_job_end
from web.runtime.context import DoorContext
from web.runtime.shared_answer import seldom

log = get_logger()

#: How long a stopping gate waits for its jobs in flight to end, in seconds. A stopping HTTP process waits equally long
#: for its calls. The results of jobs that end later can be read over HTTP.
GRACE_S = 30.0
#: How many connections the kernel queues until the gate accepts them. Linux caps this number at somaxconn.
_BACKLOG = 4_096
#: How often `stop` checks whether the last connection has ended, in seconds.
_CHECK_INTERVAL_S = 0.02
#: How often `stop` looks in the store whether any job can still end, in seconds.
_LOOK_S = 1.0
#: TCP keepalive, which detects a client whose machine failed without closing the connection. After 30 s without data,
#: TCP sends a probe. If three probes, sent every 10 s, get no answer, TCP ends the connection.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class GateMetrics:
    """The metrics of one gate, registered with the other metrics of the process."""

    def __init__(self, context: DoorContext) -> None:
        self._frames = context.metrics.counter(specs.GATE_FRAMES)
        self._refused = context.metrics.counter(specs.GATE_REFUSED_CONNECTIONS)
        for bound in GateBound:
            # An alert would miss the first count of a series that did not exist before.
            self._refused.labels(bound.value)
        self.connections = context.metrics.gauge(specs.GATE_CONNECTIONS)

    def count(self, status: str) -> None:
        """Count one frame that is sent to a client. An error of the metrics package must not prevent the sending."""
        with suppress(Exception):
            self._frames.labels(status).inc()

    def count_refused(self, bound: GateBound) -> None:
        """Count one connection that was refused because of this bound."""
        with suppress(Exception):
            self._refused.labels(bound.value).inc()


class Gate:
    """The gate's TCP server, which accepts connections after `start`. The main thread must call `start` and `stop`."""

    def __init__(self, context: DoorContext, address: tuple[str, int], bounds: Bounds) -> None:
        self._context, self._bounds, self._clock = context, bounds, context.clock
        self._metrics = GateMetrics(context)
        settings = context.settings
        self._budget = StrangerBudget(settings.gate_stranger_bytes)
        self._table = ConnectionTable(settings.gate_max_connections, settings.gate_max_connections_per_address)
        self._connections: set[Connection] = set()
        self._server = StreamServer(address, self._serve, backlog=_BACKLOG)
        self.stopping = False

    def start(self) -> None:
        """Start accepting connections. Raises ConfigError if this process cannot listen on the address."""
        host, port = self._server.address[:2]
        try:
            self._server.start()
        except OSError as error:
            raise ConfigError(f"PENSTOCK_GATE_LISTEN: cannot listen on {host}:{port} ({error.strerror})") from None
        log.info("gate.listens", address=format_address(*self._server.address[:2]))

    def stop(self, grace_s: float, *, stop_now: Callable[[], bool]) -> None:
        """Accept no more connections and jobs, and wait up to `grace_s` seconds for jobs in flight to end.

        Then, or when no job can end because all are queued and no worker claims any, end the remaining connections
        without canceling their jobs. As soon as `stop_now` returns True, all waiting ends.
        """
        self.stopping = True
        self._server.close()
        for connection in list(self._connections):
            connection.wind_down()
        no_job_ends = seldom(lambda: can_no_job_end(self._context), _LOOK_S, self._clock)
        self._wait_for_connections(grace_s, lambda: stop_now() or no_job_ends())
        remaining = list(self._connections)
        for connection in remaining:
            connection.leave()
        self._wait_for_connections(self._bounds.frame_s, stop_now)
        log.info("gate.stopped", cut_short=len(remaining))

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        _set_socket_options(sock)
        client = self._context.trusted_proxies.client_address(address[0])
        connection = Connection(
            self._context,
            sock,
            self._bounds,
            self._metrics.count,
            client=client,
            budget=self._budget,
            on_keys=lambda changed: self._table.mark(changed, stranger=changed.is_stranger),
        )
        limited = self._context.trusted_proxies.limiting_key(client)
        bound = self._table.add(connection, limited, stranger=connection.is_stranger)
        if bound is not None:
            self._refuse(sock, bound)
            return
        self._connections.add(connection)
        self._metrics.connections.inc()
        try:
            connection.serve()
        finally:
            self._metrics.connections.dec()
            self._connections.discard(connection)
            self._table.remove(connection)

    def _refuse(self, sock: socket.socket, bound: GateBound) -> None:
        """Tell the client which bound is reached, unless that would block, and close the connection."""
        self._metrics.count_refused(bound)
        fault = BadFrame("too_many_connections", f"the gate accepts no further connection now ({bound}); retry later")
        with suppress(OSError):
            sock.send(to_line(error_frame(None, fault)))
        sock.close()

    def _wait_for_connections(self, timeout_s: float, stop_now: Callable[[], bool]) -> None:
        """Block until all connections have ended, `timeout_s` has passed or `stop_now` returns True."""
        until_s = self._clock.monotonic() + timeout_s
        pause = threading.Event()
        while self._connections and self._clock.monotonic() < until_s and not stop_now():
            pause.wait(_CHECK_INTERVAL_S)


def format_address(host: str, port: int) -> str:
    """Return the address as host:port, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _set_socket_options(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Send short frames immediately, instead of waiting to combine them with later frames.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
