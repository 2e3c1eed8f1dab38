"""Serve one client's connection: read and answer frames, and cancel the client's jobs when the client disconnects.

Frames are handled one at a time, so that jobs are offered in the order in which their frames arrive. Admitted jobs run
and end in any order. If the client does not read its answers, the gate stops reading frames from that client.
A disconnect by the client cancels its jobs. If this process ends the connection, the jobs are not canceled.
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
from web.api.refusals import Yield, store_unavailable_yield
from web.api.request_schema import read_submit
from web.gate import answers
from web.gate.frames import FrameReader, OversizedFrame
from web.gate.jobs import ConnectionJobs, GateJob
from web.gate.outbox import Outbox, wait_ready
from web.gate.requests import BadFrame, Cancel, Metrics, Ping, Request, Status, Submit, find_ref, read_request
from web.http.api_errors import ApiError, FieldError, invalid_value
from web.http.json_body import parse_json
from web.operations.admission import native_request, offer
from web.operations.callers import CredentialFields, identify
from web.operations.cancel_on_disconnect import cancel_when_possible
from web.operations.long_poll import refresh_job
from web.operations.snapshots import read_totals
from web.runtime.context import DoorContext

log = structlog.get_logger()

#: The maximum number of bytes that one read takes from the socket. The frame of a short request is much smaller.
_READ_BYTES = 65_536
_CREDENTIAL_FIELDS = CredentialFields("tenant", "as tenant_key")
_NO_HEADERS = Headers()


@dataclass(frozen=True)
class Bounds:
    """The bounds on one connection: its frames, its jobs, its unsent answers and its idle time."""

    #: The maximum size of a frame from the client.
    frame_bytes: int
    #: How long a frame may take to arrive completely, and how long a client may leave its answers unread, in seconds.
    frame_s: float
    #: How long a connection without jobs in flight may stay open when no frame arrives, in seconds.
    idle_s: float
    #: The maximum number of jobs in flight.
    jobs: int
    #: While this many bytes of answers are not yet written to the socket, further answers must wait.
    unsent_bytes: int = 1 << 20


class Connection:
    """One client's connection.

    One thread calls `serve` and owns the connection. Other threads may call only `wind_down` and `leave`.
    """

    def __init__(
        self,
        context: DoorContext,
        sock: socket.socket,
        bounds: Bounds,
        count: Callable[[str], None],
        *,
        client: str,
    ) -> None:
        """Prepare to serve the socket.

        `count` is called with the status of each frame sent. `client` is the client's address, against whose limit
        failed keys count.
        """
        self._context, self._sock, self._bounds, self._count = context, sock, bounds, count
        self._client = client
        self._sock.settimeout(0)
        self._frames = FrameReader(bounds.frame_bytes)
        self._outbox = Outbox(sock, max_bytes=bounds.unsent_bytes, stall_s=bounds.frame_s)
        self._jobs = ConnectionJobs(context, send=self._send, on_empty=self._leave_if_drained)
        #: When the incomplete frame began, and when the last frame arrived, in seconds of the monotonic clock.
        self._frame_began_s = self._last_frame_s = context.clock.monotonic()
        #: Both are set once and never cleared. While `_stopping` is true, the gate refuses every `submit` frame.
        #: `_leaving` is true after this process, and not the client, has decided to end the connection.
        self._stopping = self._leaving = False

    def serve(self) -> None:
        """Answer frames until either side ends the connection, then close the socket."""
        self._outbox.start()
        client_gone = False
        try:
            client_gone = self._read_until_end()
        finally:
            unfinished = self._jobs.leave()
            if client_gone and not self._leaving:
                self._jobs.cancel(unfinished)
            self._outbox.finish()
            self._sock.close()

    def wind_down(self) -> None:
        """Refuse further `submit` frames, and end the connection when its jobs in flight have ended."""
        self._stopping = True
        self._leave_if_drained()

    def leave(self) -> None:
        """End the connection now, without canceling its jobs."""
        self._leaving = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def _leave_if_drained(self) -> None:
        if self._stopping and not len(self._jobs):
            self.leave()

    def _read_until_end(self) -> bool:
        """Answer frames until the connection ends; return True if the client or a timeout ended it."""
        while not self._leaving:
            if self._outbox.disconnected or not self._check_time_limits():
                return True
            if not wait_ready(self._sock, select.POLLIN, self._read_timeout_s()):
                continue
            try:
                data = self._sock.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return True
            if not data:
                if self._frames.partial and not self._leaving:
                    self._discard_half_frame("the connection ended within a frame")
                return True
            self._process(data)
        return False

    def _read_timeout_s(self) -> float:
        """Return how many seconds to wait for data before the time limits must be checked again."""
        now_s = self._context.clock.monotonic()
        until_s = now_s + self._bounds.idle_s
        if not len(self._jobs):
            until_s = self._idle_since_s + self._bounds.idle_s
        if self._frames.partial:
            until_s = min(until_s, self._frame_began_s + self._bounds.frame_s)
        return max(0.0, until_s - now_s)

    @property
    def _idle_since_s(self) -> float:
        return max(self._last_frame_s, self._jobs.last_end_s)

    def _check_time_limits(self) -> bool:
        """Discard the incomplete frame if it takes too long to arrive.

        Returns False, after sending an error frame, if the connection has been idle for too long.
        """
        now_s = self._context.clock.monotonic()
        if self._frames.partial and now_s - self._frame_began_s >= self._bounds.frame_s:
            self._discard_half_frame(f"the end of the frame did not arrive within {self._bounds.frame_s:g} s")
        if len(self._jobs) or now_s - self._idle_since_s < self._bounds.idle_s:
            return True
        message = f"no frame arrived within {self._bounds.idle_s:g} s and no job is in flight"
        self._send(answers.error_frame(None, BadFrame("idle", message)))
        return False

    def _discard_half_frame(self, message: str) -> None:
        ref = find_ref(self._frames.discard_partial())
        self._send(answers.error_frame(ref, BadFrame("half_frame", message)))

    def _process(self, data: bytes) -> None:
        frame_in_progress = self._frames.partial
        for frame in self._frames.feed(data):
            frame_in_progress = False
            self._last_frame_s = self._context.clock.monotonic()
            # If the connection has ended, ignore the remaining frames: their answers could not be sent.
            if self._leaving or self._outbox.disconnected:
                return
            self._answer(frame)
            # Let other greenlets run after each frame, so that a client that sends many frames at once delays no other
            # client.
            time.sleep(0)
        if self._frames.partial and not frame_in_progress:
            self._frame_began_s = self._context.clock.monotonic()

    def _answer(self, frame: bytes | OversizedFrame) -> None:
        """Answer one frame. If the frame cannot be served, send an error frame and keep the connection open."""
        if isinstance(frame, OversizedFrame):
            message = f"the frame is over {self._bounds.frame_bytes} bytes (PENSTOCK_MAX_BODY_BYTES)"
            self._send(answers.error_frame(find_ref(frame.beginning), BadFrame("request_too_large", message)))
            return
        if not frame.strip():
            return
        ref: answers.Ref = None
        try:
            request = read_request(frame)
            ref = request.ref
            self._handle(request)
        except BadFrame as fault:
            self._send(answers.error_frame(ref if fault.ref is None else fault.ref, fault))
        except ApiError as problem:
            self._send(answers.error_frame(ref, problem))
        except StoreUnavailable as error:
            log.warning("store.away", error=str(error))
            self._context.metrics.refused_without_store.inc()
            self._send(answers.with_ref(ref, store_unavailable_yield().body))
        except Exception:
            log.exception("gate.fault")
            internal_error = ApiError("internal_error", "the gate failed on this frame; its log says why")
            self._send(answers.error_frame(ref, internal_error))

    def _handle(self, request: Request) -> None:
        if isinstance(request, Submit):
            self._submit(request)
        elif isinstance(request, Cancel):
            # A cancel has no answer of its own: the client receives the job's last frame.
            cancel_when_possible(self._context, self._job_in_flight(request.ref))
        elif isinstance(request, Status):
            view = refresh_job(self._context, self._job_in_flight(request.ref))
            self._send(answers.job_status(request.ref, view))
        elif isinstance(request, Metrics):
            self._send(answers.metrics(request.ref, read_totals(self._context)))
        elif isinstance(request, Ping):
            self._send(answers.pong(request.ref))

    def _job_in_flight(self, ref: str | int) -> JobView:
        view = self._jobs.find(ref)
        if view is None:
            raise ApiError("job_not_found", f"no job with ref={ref!r} is in flight on this connection", param="ref")
        return view

    def _submit(self, request: Submit) -> None:
        context = self._context
        if self._stopping:
            self._send(answers.stopping(request.ref))
            return
        if request.ref is not None and self._jobs.find(request.ref) is not None:
            raise BadFrame("invalid_value", f"ref={request.ref!r} is already in flight on this connection", param="ref")
        if len(self._jobs) >= self._bounds.jobs:
            message = f"{len(self._jobs)} jobs of this connection are in flight (PENSTOCK_GATE_MAX_FRAMES)"
            raise BadFrame("too_many_frames", message)
        text = request.text()
        caller = identify(
            context,
            api_key=request.tenant_key,
            tenant=request.tenant,
            client=self._client,
            fields=_CREDENTIAL_FIELDS,
        )
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
        generation = native_request(body, deadline, context.settings)
        generation = replace(generation, attempt=request.attempt, traceparent=request.traceparent or "")
        verdict = offer(context, caller, generation)
        if isinstance(verdict, Yield):
            self._send(answers.with_ref(request.ref, verdict.body))
            return
        job = GateJob(verdict.view, request.ref, stream=request.stream)
        self._jobs.add(job)
        self._send(answers.accepted(request.ref, job.view))
        self._jobs.follow(job)

    def _send(self, frame: answers.Frame) -> bool:
        self._count(str(frame.get("status", "metrics")))
        return self._outbox.put(answers.to_line(frame))
