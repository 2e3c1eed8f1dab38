"""One client's connection: reads frames, answers each, and knows when the client has gone.

Frames are handled one after the other, so that jobs are offered in the order in which they came; a client
that does not read its answers is not read from either. Jobs then run and end beside one another.
Only a close that was seen cancels anything: a connection that ends because we stop does not.
"""

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog
from werkzeug.datastructures import Headers

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from web.api.deadline import resolve_deadline
from web.api.refusals import Yield, store_away
from web.api.request_schema import read_submit
from web.gate import answers as say
from web.gate.frames import FrameReader, TooLong
from web.gate.jobs import GateJob, Jobs
from web.gate.outbox import Outbox, ready
from web.gate.requests import BadFrame, Cancel, Metrics, Ping, Request, Status, Submit, read_request, seen_ref
from web.http.api_errors import ApiError, FieldError, invalid_value
from web.http.json_body import parse_json
from web.operations.admission import native_request, offer
from web.operations.callers import Spelling, identify
from web.operations.cancel_on_disconnect import cancel_when_possible
from web.operations.long_poll import refresh_job
from web.runtime.context import DoorContext

log = structlog.get_logger()

#: One read; a frame of a short request is far below it.
_CHUNK_BYTES = 65_536
_SPELLING = Spelling("tenant", "as tenant_key")
_NO_HEADERS = Headers()


@dataclass(frozen=True)
class Bounds:
    """What one connection may take of this process."""

    frame_bytes: int
    #: For a frame to arrive whole, and for a client to read nothing.
    frame_s: float
    idle_s: float
    jobs: int
    #: Of answers that are not yet written.
    unsent_bytes: int = 1 << 20


class Connection:
    """Owned by the thread that calls `serve`; `wind_down` and `leave` may be called from others."""

    def __init__(self, context: DoorContext, sock: socket.socket, bounds: Bounds, count: Callable[[str], None]) -> None:
        self._context, self._sock, self._bounds, self._count = context, sock, bounds, count
        self._sock.settimeout(0)
        self._frames = FrameReader(bounds.frame_bytes)
        self._outbox = Outbox(sock, most_bytes=bounds.unsent_bytes, stall_s=bounds.frame_s)
        self._jobs = Jobs(context, self._tell, self._at_rest)
        #: When the frame under way began, and when the last one came, in seconds of the clock.
        self._began_s = self._asked_s = context.clock.monotonic()
        #: Set once: new jobs are refused; the connection ends by our own will.
        self._stopping = self._leaving = False

    def serve(self) -> None:
        """Answer frames until either side ends the connection; closes the socket."""
        self._outbox.start()
        gone = False
        try:
            gone = self._read_on()
        finally:
            left = self._jobs.leave()
            if gone and not self._leaving:
                self._jobs.cancel(left)
            self._outbox.finish()
            self._sock.close()

    def wind_down(self) -> None:
        """Take no new jobs, and end the connection when those in flight have ended."""
        self._stopping = True
        self._at_rest()

    def leave(self) -> None:
        """End the connection; its jobs live on."""
        self._leaving = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def _at_rest(self) -> None:
        if self._stopping and not len(self._jobs):
            self.leave()

    def _read_on(self) -> bool:
        """Read and answer until the end; whether it is the client's doing."""
        while not self._leaving:
            if self._outbox.dead or not self._in_time():
                return True
            if not ready(self._sock, select.POLLIN, self._patience_s()):
                continue
            try:
                data = self._sock.recv(_CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return True
            if not data:
                if self._frames.partial and not self._leaving:
                    self._half("the connection ended within a frame")
                return True
            self._take(data)
        return False

    def _patience_s(self) -> float:
        """How long nothing may come until somebody has to look again."""
        now_s = self._context.clock.monotonic()
        until_s = now_s + self._bounds.idle_s
        if not len(self._jobs):
            until_s = self._quiet_since_s + self._bounds.idle_s
        if self._frames.partial:
            until_s = min(until_s, self._began_s + self._bounds.frame_s)
        return max(0.0, until_s - now_s)

    @property
    def _quiet_since_s(self) -> float:
        return max(self._asked_s, self._jobs.rested_s)

    def _in_time(self) -> bool:
        """Give up a frame that takes too long. Whether the connection may live on."""
        now_s = self._context.clock.monotonic()
        if self._frames.partial and now_s - self._began_s >= self._bounds.frame_s:
            self._half(f"the frame's end did not come within {self._bounds.frame_s:g} s")
        if len(self._jobs) or now_s - self._quiet_since_s < self._bounds.idle_s:
            return True
        message = f"no frame came within {self._bounds.idle_s:g} s and no job is in flight"
        self._tell(say.wrong(None, BadFrame("idle", message)))
        return False

    def _half(self, why: str) -> None:
        self._tell(say.wrong(seen_ref(self._frames.give_up()), BadFrame("half_frame", why)))

    def _take(self, data: bytes) -> None:
        began = self._frames.partial
        for frame in self._frames.feed(data):
            began = False
            self._asked_s = self._context.clock.monotonic()
            # Nobody hears the rest of what a client sent that has gone.
            if self._leaving or self._outbox.dead:
                return
            self._answer(frame)
            # Each frame is a turn: a client that sends many at once holds up no other.
            time.sleep(0)
        if self._frames.partial and not began:
            self._began_s = self._context.clock.monotonic()

    def _answer(self, frame: bytes | TooLong) -> None:
        """Answer one frame. Whatever is wrong with it is its own affair."""
        if isinstance(frame, TooLong):
            message = f"the frame is over {self._bounds.frame_bytes} bytes (PENSTOCK_MAX_BODY_BYTES)"
            self._tell(say.wrong(seen_ref(frame.beginning), BadFrame("request_too_large", message)))
            return
        if not frame.strip():
            return
        ref: say.Ref = None
        try:
            request = read_request(frame)
            ref = request.ref
            self._do(request)
        except BadFrame as unfit:
            self._tell(say.wrong(ref if unfit.ref is None else unfit.ref, unfit))
        except ApiError as problem:
            self._tell(say.wrong(ref, problem))
        except StoreUnavailable as error:
            log.warning("store.away", error=str(error))
            self._context.metrics.storeless.inc()
            self._tell(say.tagged(ref, store_away().body))
        except Exception:
            log.exception("gate.fault")
            self._tell(say.wrong(ref, ApiError("internal_error", "the gate failed on this frame; its log says why")))

    def _do(self, request: Request) -> None:
        if isinstance(request, Submit):
            self._submit(request)
        elif isinstance(request, Cancel):
            # The answer is the job's own last frame.
            cancel_when_possible(self._context, self._in_flight(request.ref))
        elif isinstance(request, Status):
            self._tell(say.standing(request.ref, refresh_job(self._context, self._in_flight(request.ref))))
        elif isinstance(request, Metrics):
            with self._context.metrics.time_script("snapshot"):
                snapshot = self._context.store.snapshot(tenants=1)
            self._tell(say.metrics(request.ref, snapshot))
        elif isinstance(request, Ping):
            self._tell(say.pong(request.ref))

    def _in_flight(self, ref: str | int) -> JobView:
        view = self._jobs.find(ref)
        if view is None:
            raise ApiError("job_not_found", f"no job with ref={ref!r} is in flight on this connection", param="ref")
        return view

    def _submit(self, request: Submit) -> None:
        context = self._context
        if self._stopping:
            self._tell(say.stopping(request.ref))
            return
        if request.ref is not None and self._jobs.find(request.ref) is not None:
            raise BadFrame("invalid_value", f"ref={request.ref!r} is already in flight on this connection", param="ref")
        if len(self._jobs) >= self._bounds.jobs:
            message = f"{len(self._jobs)} jobs of this connection are in flight (PENSTOCK_GATE_MAX_FRAMES)"
            raise BadFrame("too_many_frames", message)
        text = request.text()
        caller = identify(context, key=request.tenant_key, named=request.tenant, spelling=_SPELLING)
        body = read_submit(parse_json(text))
        if isinstance(body, list):
            raise invalid_value(body)
        deadline = resolve_deadline(
            "stream" if request.stream else "hold",
            named_ms=body.deadline_ms,
            start_within_ms=body.start_within_ms,
            headers=_NO_HEADERS,
            settings=context.settings,
            policy=caller.policy,
        )
        if isinstance(deadline, FieldError):
            raise invalid_value([deadline])
        ask = native_request(body, deadline, context.settings)
        verdict = offer(context, caller, replace(ask, attempt=request.attempt, traceparent=request.traceparent or ""))
        if isinstance(verdict, Yield):
            self._tell(say.tagged(request.ref, verdict.body))
            return
        job = GateJob(verdict.view, request.ref, stream=request.stream)
        self._jobs.add(job)
        self._tell(say.accepted(request.ref, job.view))
        self._jobs.follow(job)

    def _tell(self, frame: say.Frame) -> bool:
        self._count(str(frame.get("status", "metrics")))
        return self._outbox.put(say.to_line(frame))
