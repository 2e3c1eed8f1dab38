"""gunicorn's gevent worker with bounds on reads and connections, socket timeouts, JSON errors and a faster stop.

The original worker differs as follows:

- It reads what a client sends without bounds, and while bytes keep arriving it serves no other connection.
- It has one bound on connections, and when that is reached it accepts none, so that health probes fail.
- While a connection is open, it waits without a limit for the client to read a response.
- It answers a request that it cannot parse with an HTML page.
- When it is asked to stop, it waits up to `graceful_timeout` seconds for every open connection, even if the connection
  is idle between two requests.
"""

import errno
import resource
from contextlib import closing, suppress
from types import FrameType
from typing import Any

import gevent
from gunicorn.http.errors import (  # type: ignore[import-untyped]  # ships no types
    ConfigurationProblem,
    InvalidResponseHeader,
    InvalidResponseHeaderName,
    LimitRequestHeaders,
    LimitRequestLine,
    NoMoreData,
    ParseException,
)
from gunicorn.http.wsgi import FileWrapper  # type: ignore[import-untyped]  # ships no types
from gunicorn.workers.ggevent import GeventWorker  # type: ignore[import-untyped]  # ships no types

from shared.log import LimitedEvent
from shared.settings.settings import load
from web.http import shutdown
from web.http.api_errors import error_from_status
from web.http.client_address import parse_trusted_proxies
from web.http.connection_bounds import (
    PROBE_PATHS,
    RESERVE,
    ConnectionBounds,
    ConnectionService,
    DoorBound,
    connection_limits,
    turned_away,
)
from web.http.process_metrics import ProcessMetrics
from web.runtime.current import EXTENSION_NAME
from web.runtime.unfinished_bytes import UnfinishedBytes
from web.server.closing import LINGER_S, close_gently, send_error
from web.server.parser import DoorParser, DroppedHead, ReadLimits, SlowHead
from web.server.response import DoorResponse, EnvironMaker
from web.sign_in.sign_in import sign_in_proxies
from web.sign_in.users import repeated_header

_UNREADABLE, _CONNECTION_FAILED = LimitedEvent("http.unreadable"), LimitedEvent("http.connection_failed")

#: The HTTP status for some of gunicorn's parse errors. All other parse errors have status 400.
_STATUSES = {SlowHead: 408, LimitRequestLine: 414, LimitRequestHeaders: 431}
#: Subclasses of ParseException that are not caused by the client.
_SERVER_ERRORS = (ConfigurationProblem, InvalidResponseHeader, InvalidResponseHeaderName)

#: A connection is closed if its client sends no byte of a request's body, or reads no byte of a response, for this many
#: seconds. While a request waits for its job, this timeout does not apply, because the door has nothing to send.
SOCKET_TIMEOUT_S = 30.0
#: The errors of a connection whose client has gone.
_CLOSED_BY_CLIENT = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
#: How long a connection that was answered is still read before it is closed, in seconds, by the connection's service.
_LINGER_S = {ConnectionService.REGULAR: LINGER_S, ConnectionService.RESERVED: 0.25, ConnectionService.NONE: 0.05}
#: The reads from a connection beyond the bounds: enough for a health probe, which sends its request at once.
_RESERVE_LIMITS = ReadLimits(
    first_wait_s=1.0, idle_s=1.0, head_s=1.0, body_s=1.0, max_body_bytes=0, head_max_bytes=4_096
)
#: How often the worker checks whether it was asked to stop, in seconds.
_STOP_CHECK_INTERVAL_S = 0.1
#: How long a worker that is stopping waits for the next request on an open connection, in seconds.
_STOPPING_KEEPALIVE_S = 0.05


class RepeatedHeader(ParseException):  # type: ignore[misc]  # its base class has no types
    """A header that names the user who has signed in was sent twice. WSGI would join the two values."""


class _IdleTimeout:
    """Context manager that ends the wait for a connection's next request when `end` is called, or after `seconds`.

    During the wait, the object is in the set `active`, which contains all idle timeouts of the worker.
    """

    def __init__(self, active: "set[_IdleTimeout]", seconds: float | None) -> None:
        self._active = active
        #: Because of the argument False, the timeout ends the `with` block silently, as gunicorn's own timeout does.
        self._timeout = gevent.Timeout(seconds, False)  # noqa: FBT003 - gevent's signature
        self._greenlet = gevent.getcurrent()

    def __enter__(self) -> None:
        self._active.add(self)
        self._timeout.__enter__()

    def __exit__(self, *exc_info: object) -> bool:
        self._active.discard(self)
        return bool(self._timeout.__exit__(*exc_info))

    def end(self) -> None:
        """End the wait, unless a request arrives first."""
        gevent.get_hub().loop.run_callback(self._end_now)

    def _end_now(self) -> None:
        # This method runs in the event loop, so no greenlet can run between the check and the throw. A request that is
        # being handled is therefore never interrupted.
        if self in self._active:
            self._greenlet.throw(self._timeout)


class DoorWorker(GeventWorker):  # type: ignore[misc]  # GeventWorker ships no types
    """The gunicorn worker class of the HTTP door; each instance is one worker process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle_timeouts: set[_IdleTimeout] = set()
        self._settings = load()
        self._proxies = parse_trusted_proxies(self._settings.trusted_proxies)
        self._sign_in_proxies = sign_in_proxies(self._settings)
        max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._bounds = ConnectionBounds(connection_limits(self._settings, max_files))
        self._heads = UnfinishedBytes(self._settings.max_open_head_bytes)
        #: The heads of connections beyond the bounds are bounded by their number and length alone.
        self._reserve_heads = UnfinishedBytes(RESERVE * 2 * _RESERVE_LIMITS.head_max_bytes)
        self._environs = EnvironMaker(self.cfg)
        self._metrics: ProcessMetrics | None = None

    def load_wsgi(self) -> None:
        """Load the app, whose metrics show this worker's connections."""
        super().load_wsgi()
        self._metrics = self.wsgi.extensions[EXTENSION_NAME].metrics

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """Serve the requests of one connection, one after the other, and close the connection."""
        # The connection may have inherited a timeout from the listening socket.
        client.settimeout(None)
        address = self._proxies.limiting_key(addr[0] if addr else "")
        service, exceeded = self._bounds.enter(address)
        self._show_connections()
        try:
            if exceeded is None:
                self._serve(listener, client, addr)
            else:
                self._turn_away(listener, client, addr, service, exceeded)
        finally:
            close_gently(client, hurry=shutdown.requested.is_set, seconds=_LINGER_S[service])
            self._bounds.leave(address, service)
            self._show_connections()

    def _show_connections(self) -> None:
        if self._metrics is not None:
            self._metrics.show_connections(self._bounds.open)

    def _serve(self, listener: Any, client: Any, addr: Any) -> None:
        parser = DoorParser(self.cfg, client, addr, self._read_limits(addr), self._heads)
        request, name = None, listener.getsockname()
        try:
            while (request := self._next_request(parser)) is not None:
                self.handle_request(name, request, client, addr)
        except (StopIteration, NoMoreData):
            # The client has closed the connection, or it cannot be used again.
            pass
        except OSError as error:
            if error.errno not in _CLOSED_BY_CLIENT:
                _CONNECTION_FAILED.log("error", exc_info=error)
        except Exception as error:  # noqa: BLE001 - every error of a connection ends this connection only
            self.handle_error(request, client, addr, error)
        finally:
            parser.close()

    def _turn_away(
        self, listener: Any, client: Any, addr: Any, service: ConnectionService, exceeded: DoorBound
    ) -> None:
        """Answer a connection beyond the bounds: a health probe as always, anything else with an error."""
        request = None
        if service is ConnectionService.RESERVED:
            with suppress(StopIteration, ParseException, OSError):
                parser = DoorParser(self.cfg, client, addr, _RESERVE_LIMITS, self._reserve_heads)
                with closing(parser):
                    request = self._next_request(parser)
        if request is not None and request.method in {"GET", "HEAD"} and request.path in PROBE_PATHS:
            request.force_close()
            with suppress(StopIteration, OSError):
                self.handle_request(listener.getsockname(), request, client, addr)
            return
        self._send_turned_away(client, exceeded, self._bounds.describe(exceeded))

    def _send_turned_away(self, client: Any, exceeded: DoorBound, message: str) -> None:
        if self._metrics is not None:
            self._metrics.count_turned_away(exceeded.value)
        send_error(client, turned_away(exceeded, message))

    def _next_request(self, parser: DoorParser) -> Any:
        """Return the connection's next request, or None if the process is asked to stop while the connection is idle.

        Raises what the parser raises.
        """
        # The parser limits its waits itself.
        with _IdleTimeout(self._idle_timeouts, None if self.alive else _STOPPING_KEEPALIVE_S):
            return next(parser)
        return None

    def _read_limits(self, addr: Any) -> ReadLimits:
        head_s = self._settings.request_head_ms / 1000
        is_proxy = self._proxies.trusts(addr[0] if addr else "")
        return ReadLimits(
            first_wait_s=self.cfg.keepalive if is_proxy else min(head_s, self.cfg.keepalive),
            idle_s=self.cfg.keepalive,
            head_s=head_s,
            body_s=self._settings.request_body_ms / 1000,
            max_body_bytes=self._settings.max_body_bytes,
            max_file_bytes=self._settings.max_file_bytes,
        )

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Handle one request.

        Raises ConnectionResetError if the client reads nothing of its response for SOCKET_TIMEOUT_S, so that gunicorn
        treats the connection as closed by the client. Raises RepeatedHeader for a request that names two users.
        """
        if self._sign_in_proxies.trusts(addr[0] if addr else "") and (
            repeated := repeated_header(name for name, _ in req.headers)
        ):
            raise RepeatedHeader(f"{repeated} was sent twice; a proxy must replace the client's header by its own")
        sock.settimeout(SOCKET_TIMEOUT_S)
        try:
            with suppress(gevent.GreenletExit, SystemExit):
                self._answer(req, sock, self._environs.make(req, sock, addr, listener_name))
        except TimeoutError:
            # gunicorn would log a TimeoutError with a traceback, as if it were an error of the server.
            raise ConnectionResetError(errno.ECONNRESET, "the client does not read its response") from None
        # The parser limits the wait for the next request itself.
        sock.settimeout(None)

    def _answer(self, req: Any, sock: Any, environ: dict[str, Any]) -> None:
        """Call the app and send its response. Raises StopIteration if the connection cannot be used again.

        gunicorn's own method also prepares a line for the access log, which takes as long as routing a request does.
        """
        response = DoorResponse(req, sock, self.cfg)
        self.nr += 1
        if self.nr >= self.max_requests:
            self.alive = False
        if not self.alive:
            response.force_close()
        try:
            parts = self.wsgi(environ, response.start_response)
            try:
                if isinstance(parts, FileWrapper):
                    response.write_file(parts)
                else:
                    for part in parts:
                        response.write(part)
                response.close()
            finally:
                if hasattr(parts, "close"):
                    parts.close()
        except OSError:
            raise
        except (Exception, SystemExit):
            if not response.has_begun:
                raise
            # Another response in the middle of this one would be read as a part of it.
            self.log.exception("Error handling request")
            raise StopIteration from None
        if response.should_close():
            raise StopIteration

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Handle an error of a connection: if the request could not be parsed, send a JSON error object."""
        if not isinstance(exc, ParseException) or isinstance(exc, _SERVER_ERRORS):
            super().handle_error(req, client, addr, exc)
            return
        if isinstance(exc, DroppedHead):
            self._send_turned_away(client, DoorBound.HEADS, str(exc))
            return
        status = next((status for kind, status in _STATUSES.items() if isinstance(exc, kind)), 400)
        error = error_from_status(status, f"the request could not be parsed: {str(exc)[:200]}")
        _UNREADABLE.log("info", request_id=send_error(client, error), error=str(exc)[:200])

    def run(self) -> None:
        """Serve requests until the process is asked to stop."""
        gevent.spawn(self._end_idle_connections_on_stop)
        super().run()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle the signal for a graceful stop: finish the requests that are being handled, then stop."""
        shutdown.requested.set()
        super().handle_exit(sig, frame)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """Handle the signal for an immediate stop."""
        shutdown.requested.set()
        super().handle_quit(sig, frame)

    def _end_idle_connections_on_stop(self) -> None:
        while self.alive:
            gevent.sleep(_STOP_CHECK_INTERVAL_S)
        shutdown.requested.set()
        for idle_timeout in list(self._idle_timeouts):
            idle_timeout.end()
