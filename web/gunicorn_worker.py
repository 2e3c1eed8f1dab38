"""gunicorn's gevent worker, but for silent clients, for what is no request, and for its end.

As it comes, it answers what it cannot read with a page of HTML; it waits for a request's body, or for a
reader, as long as the connection is open; and one that is told to stop waits for every open connection
until `graceful_timeout`, also for those that a client merely keeps for its next request.
"""

import errno
import json
import secrets
from contextlib import suppress
from http import HTTPStatus
from types import FrameType
from typing import Any

import gevent
import structlog
from gunicorn.http.errors import (  # type: ignore[import-untyped]  # ships no types
    ConfigurationProblem,
    InvalidResponseHeader,
    InvalidResponseHeaderName,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
)
from gunicorn.workers.ggevent import GeventWorker  # type: ignore[import-untyped]  # as above

from web.http import shutdown
from web.http.api_errors import error_from_status, error_response

log = structlog.get_logger()

#: What a client's bytes can be besides nonsense; and what of gunicorn's faults is not of them.
_STATUSES = {LimitRequestLine: 414, LimitRequestHeaders: 431}
_OURS = (ConfigurationProblem, InvalidResponseHeader, InvalidResponseHeaderName)

#: How long a client may neither send a byte of the body it has announced nor take one of its answer, in seconds.
#: A wait for a job's end is no such silence: then it is we who have nothing to say.
SILENCE_S = 30.0
#: How late a stop may be noticed, and how long a connection is then still listened to, in seconds.
_LOOK_S, _LAST_S = 0.1, 0.05


class _Idle:
    """The time in which a connection has no request under way: at most `seconds`, and none once we stop."""

    def __init__(self, among: "set[_Idle]", seconds: float) -> None:
        self._among = among
        #: False: ends the block without an exception, as gunicorn's own does.
        self._timeout = gevent.Timeout(seconds, False)  # noqa: FBT003 - its own signature
        self._greenlet = gevent.getcurrent()

    def __enter__(self) -> None:
        self._among.add(self)
        self._timeout.__enter__()

    def __exit__(self, *raised: object) -> Any:
        self._among.discard(self)
        return self._timeout.__exit__(*raised)

    def end(self) -> None:
        """Let the time be over, unless a request comes first."""
        gevent.get_hub().loop.run_callback(self._end_now)

    def _end_now(self) -> None:
        # In the event loop nothing comes between the question and the throw: no request under way is ever hit.
        if self in self._among:
            self._greenlet.throw(self._timeout)


class DoorWorker(GeventWorker):  # type: ignore[misc]  # as above
    """One ingress process."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._idle: set[_Idle] = set()

    def timeout_ctx(self) -> _Idle:
        """What gunicorn puts around its wait for the next request of a connection."""
        return _Idle(self._idle, self.cfg.keepalive if self.alive else _LAST_S)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> Any:
        """Serve one request. Raises ConnectionResetError for a client that takes nothing: then nobody is there."""
        sock.settimeout(SILENCE_S)
        try:
            kept = super().handle_request(listener_name, req, sock, addr)
        except TimeoutError:
            # gunicorn would write a traceback for it, as for a fault of ours.
            raise ConnectionResetError(errno.ECONNRESET, "the client takes nothing of its answer") from None
        # Between two requests it is `timeout_ctx` that says how long.
        sock.settimeout(None)
        return kept

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer what is no request that could be read with the error object that every error has."""
        if not isinstance(exc, ParseException) or isinstance(exc, _OURS):
            super().handle_error(req, client, addr, exc)
            return
        status = next((status for kind, status in _STATUSES.items() if isinstance(exc, kind)), 400)
        request_id = secrets.token_hex(16)
        log.info("http.unreadable", request_id=request_id, error=str(exc)[:200])
        told = error_response(error_from_status(status, f"this is no request that could be read: {str(exc)[:200]}"))
        body = json.dumps(told.body).encode()
        headers = {"x-request-id": request_id, "Content-Type": "application/json", "Content-Length": len(body)}
        lines = [f"{name}: {value}" for name, value in (headers | told.headers | {"Connection": "close"}).items()]
        head = "\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "", ""])
        with suppress(OSError):
            client.sendall(head.encode() + body)

    def run(self) -> None:
        """Serve until told to stop."""
        gevent.spawn(self._end_what_idles)
        super().run()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop when what is under way has ended."""
        shutdown.requested.set()
        super().handle_exit(sig, frame)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at once."""
        shutdown.requested.set()
        super().handle_quit(sig, frame)

    def _end_what_idles(self) -> None:
        while self.alive:
            gevent.sleep(_LOOK_S)
        shutdown.requested.set()
        for idle in list(self._idle):
            idle.end()
