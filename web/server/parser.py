"""gunicorn's request parser with bounds: on a head's size and time, on a body's, and on what is read of an unread body.

The unfinished heads of all connections also share a budget of bytes.

gunicorn's own parser reads the rest of a body that nobody wanted, and the next requests of a client that pipelines,
for as long as bytes keep arriving. gevent's `recv` returns at once while there are bytes, so the event loop never runs,
and every other connection of the process waits.
"""

import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import gevent
from gunicorn.http.body import LengthReader  # type: ignore[import-untyped]  # ships no types
from gunicorn.http.errors import LimitRequestHeaders, ParseException  # type: ignore[import-untyped]  # ships no types
from gunicorn.http.message import Request  # type: ignore[import-untyped]  # ships no types
from gunicorn.http.parser import RequestParser  # type: ignore[import-untyped]  # ships no types

from web.http.api_errors import ApiError
from web.runtime.unfinished_bytes import UnfinishedBytes

#: The longest head of a request, in bytes, as in nginx's default. gunicorn's own limits allow 800 KiB.
HEAD_MAX_BYTES = 32_768
#: How much of a body that the app did not read is read so that the connection can be used again, in bytes and seconds.
#: A client that sends a small body with a wrong key keeps its connection; a longer body costs it the connection.
DRAIN_MAX_BYTES, DRAIN_S = 65_536, 1.0
#: The route to which files are uploaded, whose bodies have bounds of their own, and the longest time of an upload, in
#: seconds.
UPLOAD_PATH, _LONGEST_UPLOAD_S = "/v1/files", 3_600.0
#: How long a connection is read and parsed without a pause, in seconds; then all others that have something get a turn.
_SLICE_S = 0.002
#: Sleeping for any time above zero continues in the next iteration of the event loop, after every connection that has
#: something was served. A sleep of zero may continue in the same iteration.
_NEXT_ITERATION_S = 1e-6
#: The pause before each request that arrived before its predecessor was answered, in seconds. The clients of an API
#: wait for an answer before they send again, and so do proxies: only a flood is slowed down, to 50 requests a second.
_PIPELINE_PAUSE_S = 0.02


@dataclass(frozen=True)
class ReadLimits:
    """The limits for sending a request: times in seconds, and the size of a body in bytes."""

    #: The wait for the first request of a connection. Only proxies open connections before they have a request to send.
    first_wait_s: float
    #: The wait for each further request.
    idle_s: float
    head_s: float
    body_s: float
    max_body_bytes: int
    max_file_bytes: int = 0
    head_max_bytes: int = HEAD_MAX_BYTES

    def of_body(self, path: str) -> tuple[float, int]:
        """Return how long the body of a request to this path may take, in seconds, and its most bytes on the wire.

        Chunks of one byte take six times their size. A file may take longer in proportion to its bound.
        """
        if path != UPLOAD_PATH or not self.max_body_bytes:
            return self.body_s, 8 * self.max_body_bytes + DRAIN_MAX_BYTES
        longest_s = self.body_s * max(1.0, self.max_file_bytes / self.max_body_bytes)
        return min(longest_s, max(_LONGEST_UPLOAD_S, self.body_s)), 8 * self.max_file_bytes + DRAIN_MAX_BYTES


class SlowHead(ParseException):  # type: ignore[misc]  # its base class has no types
    """The client did not send the head of a request in time."""


class DroppedHead(ParseException):  # type: ignore[misc]  # its base class has no types
    """The head was unfinished when its bytes were needed for the heads of others."""


class _Undrained(Exception):
    """More of an unread body remains than is worth reading."""


class _Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    DRAIN = auto()


def yield_to_others() -> None:
    """Let every other connection of this process that has something to do have a turn."""
    gevent.sleep(_NEXT_ITERATION_S)


class PacedSocket:
    """The parser's input: a socket whose reads give way to other connections and are limited in each phase."""

    def __init__(self, sock: Any, limits: ReadLimits, heads: UnfinishedBytes) -> None:
        self._sock, self._limits, self._heads = sock, limits, heads
        self._phase = _Phase.IDLE
        self._until_s = self._slice_began_s = time.monotonic()
        self._left_bytes = 0
        #: How long the current body may take, in seconds, and its most bytes on the wire.
        self._body_limits = limits.of_body("")
        #: Whether the client waits for `100 Continue` before it sends the body.
        self.awaits_continue = False
        #: How many bytes of the budget are taken, and whether they were taken back.
        self._held_bytes, self._dropped = 0, False
        #: Whether the peer is one of gunicorn's trusted proxies; None until a request asks.
        self.is_trusted_peer: bool | None = None
        #: The greenlet that waits for bytes, if there is one.
        self._waiting: Any = None

    def begin_wait(self, idle_s: float) -> None:
        """Wait for the first byte of a request for `idle_s` seconds."""
        self._begin(_Phase.IDLE, idle_s, self._limits.head_max_bytes)

    def begin_head(self, count: int) -> None:
        """Read the head of a request. `count` of its bytes have arrived."""
        self._begin(_Phase.HEAD, self._limits.head_s, self._limits.head_max_bytes)
        self._hold(count)

    def begin_body(self, path: str, *, awaits_continue: bool) -> None:
        """Read the body of a request to this path for the app."""
        self.awaits_continue = awaits_continue
        self._body_limits = self._limits.of_body(path)
        self._begin(_Phase.BODY, *self._body_limits)

    def begin_drain(self) -> None:
        """Read the rest of a body that the app left."""
        self._begin(_Phase.DRAIN, DRAIN_S, DRAIN_MAX_BYTES)

    def recv(self, size: int) -> bytes:
        """Return the next bytes, or b"" if the client has closed its side or sent no request for too long.

        Raises SlowHead, LimitRequestHeaders, DroppedHead, ApiError (408 and 413, for a body) or _Undrained where the
        limit of a phase is exceeded, and TimeoutError if the client sends nothing of a body for the socket's own
        timeout.
        """
        if self.awaits_continue and self._phase is _Phase.BODY:
            self.awaits_continue = False
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if time.monotonic() - self._slice_began_s > _SLICE_S:
            yield_to_others()
            self._slice_began_s = time.monotonic()
        if self._dropped:
            raise self._drop_error()
        began_s = time.monotonic()
        left_s = self._until_s - began_s
        if left_s <= 0 or self._left_bytes <= 0:
            return self._exceeded(too_slow=left_s <= 0)
        stall_s = self._sock.gettimeout()
        self._sock.settimeout(left_s if stall_s is None else min(left_s, stall_s))
        self._waiting = gevent.getcurrent()
        try:
            data: bytes = self._sock.recv(min(size, self._left_bytes) if self._phase is _Phase.DRAIN else size)
        except TimeoutError:
            if stall_s is not None and stall_s < left_s:
                raise
            return self._exceeded(too_slow=True)
        finally:
            self._waiting = None
            # The app's response is written with the socket's own timeout.
            self._sock.settimeout(stall_s)
        now_s = time.monotonic()
        if now_s - began_s > _SLICE_S:
            self._slice_began_s = now_s
        self._left_bytes -= len(data)
        if self._phase is _Phase.IDLE:
            self._phase, self._until_s = _Phase.HEAD, now_s + self._limits.head_s
        if self._phase is not _Phase.BODY:
            self._hold(len(data))
        return data

    def release(self) -> None:
        """Give back the held bytes to the budget."""
        self._held_bytes = 0
        self._heads.hold(self, 0)

    def drop_unfinished(self) -> None:
        """Make the read of this head end with an error, because its bytes are needed for others."""
        self._dropped = True
        gevent.get_hub().loop.run_callback(self._end_wait)

    def _end_wait(self) -> None:
        # This method runs in the event loop, so the greenlet that is thrown at certainly still waits in `recv`.
        if self._waiting is not None:
            self._waiting.throw(self._drop_error())

    def _drop_error(self) -> Exception:
        if self._phase is _Phase.DRAIN:
            return _Undrained()
        return DroppedHead(
            f"this process holds at most {self._heads.max_bytes} bytes of unfinished heads "
            "(PENSTOCK_MAX_OPEN_HEAD_BYTES), and this one was held the longest"
        )

    def _hold(self, count: int) -> None:
        """Count `count` more bytes of the phase; raise what `recv` documents if there is no room for them."""
        if not self._dropped:
            self._held_bytes += count
            self._heads.hold(self, self._held_bytes)
        if self._dropped:
            raise self._drop_error()

    def _begin(self, phase: _Phase, seconds: float, max_bytes: int) -> None:
        if self._held_bytes:
            self.release()
        self._phase, self._left_bytes = phase, max_bytes
        self._until_s = time.monotonic() + seconds

    def _exceeded(self, *, too_slow: bool) -> bytes:
        """Return b"" or raise, as `recv` documents."""
        limits = self._limits
        if self._phase is _Phase.IDLE:
            return b""
        if self._phase is _Phase.DRAIN:
            raise _Undrained
        if self._phase is _Phase.HEAD and too_slow:
            raise SlowHead(f"the head took longer than {limits.head_s:g} s (PENSTOCK_REQUEST_HEAD_MS)")
        if self._phase is _Phase.HEAD:
            raise LimitRequestHeaders(f"the head of the request is longer than {limits.head_max_bytes} bytes")
        if too_slow:
            message = f"the body took longer than {self._body_limits[0]:g} s (PENSTOCK_REQUEST_BODY_MS)"
            raise ApiError("request_timeout", message)
        raise ApiError("request_too_large", f"the body takes more than {self._body_limits[1]} bytes with its chunks")


class _BoundedRequest(Request):  # type: ignore[misc]  # its base class has no types
    """A request that is answered with `Connection: close` if its connection cannot be used again."""

    _expected_100_continue: bool

    def __init__(self, cfg: Any, unreader: Any, *arguments: Any) -> None:
        self._source: PacedSocket = unreader.sock
        super().__init__(cfg, unreader, *arguments)
        # gunicorn would ask for the body before the app has looked at the key.
        self._source.begin_body(self.path or "", awaits_continue=self._expected_100_continue)
        self._expected_100_continue = False

    def _peer_is_trusted_proxy(self) -> bool:
        """Return whether gunicorn believes the peer's headers about the scheme, which is the same for a connection."""
        if self._source.is_trusted_peer is None:
            self._source.is_trusted_peer = bool(super()._peer_is_trusted_proxy())
        return self._source.is_trusted_peer

    def should_close(self) -> bool:
        """Return whether the connection is closed after this request."""
        reader = self.body.reader
        too_much_unread = isinstance(reader, LengthReader) and reader.length > DRAIN_MAX_BYTES
        return bool(too_much_unread or self._source.awaits_continue or self.body.failed or super().should_close())


class DoorParser(RequestParser):  # type: ignore[misc]  # its base class has no types
    """Yields the requests of one connection, until the connection should be closed."""

    mesg_class = _BoundedRequest
    #: The request that was returned last.
    mesg: Any

    def __init__(self, cfg: Any, sock: Any, address: Any, limits: ReadLimits, heads: UnfinishedBytes) -> None:
        """`heads` is the budget for the bytes that are read before the app looks at the request's key."""
        self._source, self._limits = PacedSocket(sock, limits, heads), limits
        super().__init__(cfg, self._source, address)

    def __next__(self) -> Any:
        """Return the next request.

        Raises StopIteration if the connection should be closed, and what PacedSocket raises for a head.
        """
        if self.mesg is not None and (self.mesg.should_close() or not self.finish_body()):
            raise StopIteration
        if buffered := self.unreader.buf.getbuffer().nbytes:
            gevent.sleep(_PIPELINE_PAUSE_S)
            self._source.begin_head(buffered)
        else:
            self._source.begin_wait(self._limits.first_wait_s if self.mesg is None else self._limits.idle_s)
        self.req_count += 1
        self.mesg = _BoundedRequest(self.cfg, self.unreader, self.source_addr, self.req_count)
        return self.mesg

    def close(self) -> None:
        """Give back the bytes that the connection holds to the budget."""
        self._source.release()

    def finish_body(self, *_: Any, **__: Any) -> bool:
        """Read the rest of the body that the app left; return False if that is too long, too slow or not a body."""
        if self.mesg is None:
            return True
        self._source.begin_drain()
        try:
            while self.mesg.body.read(8_192):
                pass
        except (_Undrained, ParseException, OSError):
            return False
        return not self.mesg.body.failed
