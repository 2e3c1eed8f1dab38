"""Serve one client's connection: read and answer frames, and cancel the client's jobs when the client disconnects.

Frames are handled one at a time, so that jobs are offered in the order in which their frames arrive. Admitted jobs run
and end in any order. If the client does not read its answers, the gate stops reading frames from that client.
A disconnect by the client cancels its jobs, and so does the end of its key. If this process ends the connection, the
jobs are not canceled.
"""

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from werkzeug.datastructures import Headers

from shared.errors import StoreUnavailable
from shared.jobs.job import JobView
from shared.log import LimitedEvent, get_logger
from shared.settings.settings import Settings
from web.api.body import validated
from web.api.deadline import AnswerMode, resolve_deadline
from web.api.refusals import Yield, store_unavailable_yield
from web.api.request_schema import SubmitBody, checks_of
from web.gate import answers
from web.gate.connection_keys import ConnectionKeys
from web.gate.frames import KEPT_BYTES, FrameReader, OversizedFrame
from web.gate.jobs import ConnectionJobs, GateJob
from web.gate.outbox import Outbox, wait_ready
from web.gate.requests import Auth, BadFrame, Cancel, Metrics, Ping, Request, Status, Submit, find_ref, read_request
from web.gate.stranger_budget import StrangerBudget
from web.http.api_errors import ApiError
from web.http.json_body import parse_json
from web.jobs.callers import Caller
from web.jobs.cancel_on_disconnect import cancel_when_possible
from web.jobs.generation import native_request
from web.jobs.snapshots import read_totals
from web.jobs.spilling import offer
from web.jobs.tenant_jobs import refresh_job
from web.retrieval.step import retrieve
from web.runtime.context import DoorContext
from web.runtime.unfinished_bytes import SMALL_BYTES


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
    #: `frame_s` for frames of more than SMALL_BYTES, and `idle_s`, while the client has shown no valid key.
    stranger_frame_s: float
    stranger_idle_s: float
    #: While this many bytes of answers are not yet written to the socket, further answers must wait.
    unsent_bytes: int = 1 << 20


def bounds_of(settings: Settings) -> Bounds:
    """Return the bounds on one connection that the settings define."""
    return Bounds(
        frame_bytes=settings.max_body_bytes,
        frame_s=settings.gate_frame_ms / 1000,
        idle_s=settings.gate_idle_ms / 1000,
        jobs=settings.gate_max_frames,
        stranger_frame_s=settings.gate_stranger_frame_ms / 1000,
        stranger_idle_s=settings.gate_stranger_idle_ms / 1000,
    )


log = get_logger()

#: While the store is away, even a frame with an unknown key ends with this event.
_STORE_AWAY = LimitedEvent("store.away")

#: The maximum number of bytes that one read takes from the socket. The frame of a short request is much smaller.
_READ_BYTES = 65_536
_NO_HEADERS = Headers()
#: While this many bytes of answers to a client without a valid key are unsent, further answers must wait. This is room
#: for a few error frames.
_STRANGER_UNSENT_BYTES = 4_096


class Connection:
    """One client's connection.

    One thread calls `serve` and owns the connection. Other threads may call only `wind_down`, `leave`, `abort` and
    `drop_unfinished`.
    """

    def __init__(
        self,
        context: DoorContext,
        sock: socket.socket,
        bounds: Bounds,
        count: Callable[[str], None],
        *,
        client: str,
        budget: StrangerBudget,
        on_keys: Callable[["Connection"], None] = lambda _connection: None,
    ) -> None:
        """Prepare to serve the socket.

        `count` is called with the status of each frame sent. `client` is the client's address, against whose limit
        failed keys count. `budget` is shared by all connections of the process. `on_keys` is called when
        `is_stranger` has changed.
        """
        self._context, self._sock, self._bounds, self._count = context, sock, bounds, count
        self._budget, self._on_keys = budget, on_keys
        self._sock.settimeout(0)
        self._frames = FrameReader(bounds.frame_bytes)
        self._outbox = Outbox(sock, max_bytes=bounds.unsent_bytes, stall_s=bounds.frame_s)
        self._jobs = ConnectionJobs(context, send=self._send, on_empty=self._leave_if_drained)
        self._keys = ConnectionKeys(context, client, on_change=self._change_limits, on_key_end=self._end_with_key)
        #: Set when the gate is stopping, and never cleared. Every `submit` frame is then refused.
        self._stopping = False
        if self._keys.is_stranger:
            self._outbox.set_max_bytes(_STRANGER_UNSENT_BYTES)
        #: When the incomplete frame began, and when the last frame arrived, in seconds of the monotonic clock.
        self._frame_began_s = self._last_frame_s = context.clock.monotonic()
        #: True after this process, and not the client, has decided to end the connection; never cleared.
        self._leaving = False
        #: Why the connection's key is no longer valid, if it ends because of that; set by the thread that watches keys.
        self._key_problem: ApiError | None = None
        #: The first bytes of a frame that was dropped because the budget was full, until the client has been told.
        self._dropped: bytes | None = None

    @property
    def is_stranger(self) -> bool:
        """Whether the connection has the limits of clients without a valid key."""
        return self._keys.is_stranger

    def serve(self) -> None:
        """Answer frames until either side ends the connection, then close the socket."""
        self._outbox.start()
        client_gone = False
        try:
            client_gone = self._read_until_end()
        finally:
            self._budget.hold(self, 0)
            self._keys.end()
            unfinished = self._jobs.leave()
            if client_gone and not self._leaving:
                self._jobs.cancel(unfinished)
            if self._key_problem is not None:
                for ref in [*(job.ref for job in unfinished), None]:
                    self._send(answers.error_frame(ref, self._key_problem))
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

    def abort(self) -> None:
        """End the connection now, as if the client had disconnected; unsent answers are lost."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def drop_unfinished(self) -> None:
        """Discard the unfinished frame, because the budget for strangers is full; the client is told later."""
        self._dropped = self._frames.discard_partial()

    def _change_limits(self) -> None:
        self._outbox.set_max_bytes(_STRANGER_UNSENT_BYTES if self.is_stranger else self._bounds.unsent_bytes)
        self._on_keys(self)

    def _end_with_key(self, problem: ApiError) -> None:
        """React to the end of a key; called on the thread that watches keys, so this method must not block.

        Jobs that were submitted with another key continue. Without such jobs, the connection ends.
        """
        if not self._keys.is_stranger:
            return
        self._change_limits()
        if not self._jobs.any_with_valid_key():
            self._key_problem = problem
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
                if self._frames.partial and not self._leaving and self._key_problem is None:
                    self._discard_half_frame("the connection ended within a frame")
                return True
            self._process(data)
        return False

    def _read_timeout_s(self) -> float:
        """Return how many seconds to wait for data before the time limits must be checked again."""
        now_s = self._context.clock.monotonic()
        until_s = now_s + self._idle_limit_s
        if not len(self._jobs):
            until_s = self._idle_since_s + self._idle_limit_s
        if self._frames.partial:
            until_s = min(until_s, self._frame_began_s + self._frame_limit_s)
        return max(0.0, until_s - now_s)

    @property
    def _idle_limit_s(self) -> float:
        bounds = self._bounds
        return min(bounds.idle_s, bounds.stranger_idle_s) if self.is_stranger else bounds.idle_s

    @property
    def _frame_limit_s(self) -> float:
        """How long the incomplete frame may take to arrive, in seconds."""
        bounds = self._bounds
        if self.is_stranger and self._frames.held_bytes > SMALL_BYTES:
            return min(bounds.frame_s, bounds.stranger_frame_s)
        return bounds.frame_s

    @property
    def _idle_since_s(self) -> float:
        return max(self._last_frame_s, self._jobs.last_end_s)

    def _check_time_limits(self) -> bool:
        """Discard the incomplete frame if it takes too long to arrive.

        Returns False, after sending an error frame, if the connection has been idle for too long.
        """
        self._report_drop()
        now_s = self._context.clock.monotonic()
        limit_s = self._frame_limit_s
        if self._frames.partial and now_s - self._frame_began_s >= limit_s:
            advice = "; show a key first, with an auth frame" if limit_s < self._bounds.frame_s else ""
            self._discard_half_frame(f"the end of the frame did not arrive within {limit_s:g} s{advice}")
        if len(self._jobs) or now_s - self._idle_since_s < self._idle_limit_s:
            return True
        message = f"no frame arrived within {self._idle_limit_s:g} s and no job is in flight"
        self._send(answers.error_frame(None, BadFrame("idle", message)))
        return False

    def _discard_half_frame(self, message: str) -> None:
        ref = find_ref(self._frames.discard_partial())
        self._budget.hold(self, 0)
        self._send(answers.error_frame(ref, BadFrame("half_frame", message)))

    def _report_drop(self) -> None:
        """Tell the client once that its frame was dropped because the budget for strangers was full."""
        beginning, self._dropped = self._dropped, None
        if beginning is not None:
            self._send(answers.error_frame(find_ref(beginning), _no_room(None)))

    def _process(self, data: bytes) -> None:
        frame_in_progress = self._frames.partial
        for frame in self._frames.feed(data):
            frame_in_progress = False
            self._budget.hold(self, 0)
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
        self._budget.hold(self, self._frames.held_bytes if self.is_stranger else 0)
        self._report_drop()

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
            with self._budget.parsing(len(frame) if self.is_stranger else 0) as has_room:
                request = read_request(frame) if has_room else _refuse(frame)
                ref = request.ref
                caller = self._keys.identify(request)
            self._handle(request, caller)
        except BadFrame as fault:
            self._send(answers.error_frame(ref if fault.ref is None else fault.ref, fault))
        except ApiError as problem:
            self._send(answers.error_frame(ref, problem))
        except StoreUnavailable as error:
            _STORE_AWAY.log("warning", error=str(error), fault=error.fault.value)
            self._context.metrics.refused_without_store.inc()
            self._send(answers.with_ref(ref, store_unavailable_yield(error.fault).body))
        except Exception:
            log.exception("gate.fault")
            internal_error = ApiError("internal_error", "the gate failed on this frame; its log says why")
            self._send(answers.error_frame(ref, internal_error))

    def _handle(self, request: Request, caller: Caller | None) -> None:
        """Carry out a request of this caller and send its answer. Raises BadFrame, ApiError and StoreUnavailable."""
        if isinstance(request, Submit):
            self._submit(request, caller)
        elif isinstance(request, Cancel):
            # A cancel has no answer of its own: the client receives the job's last frame.
            cancel_when_possible(self._context, self._job_in_flight(request.ref))
        elif isinstance(request, Status):
            view = refresh_job(self._context, self._job_in_flight(request.ref))
            self._send(answers.job_status(request.ref, view))
        elif isinstance(request, Metrics):
            self._send(answers.with_ref(request.ref, read_totals(self._context)))
        elif isinstance(request, Auth):
            self._send(answers.with_ref(request.ref, {"status": "ok"}))
        elif isinstance(request, Ping):
            self._send(answers.with_ref(request.ref, {"status": "pong"}))

    def _job_in_flight(self, ref: str | int) -> JobView:
        view = self._jobs.find(ref)
        if view is None:
            raise ApiError("job_not_found", f"no job with ref={ref!r} is in flight on this connection", param="ref")
        return view

    def _submit(self, request: Submit, caller: Caller | None) -> None:
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
        assert caller is not None  # noqa: S101 - for mypy: every submit has a caller
        context = context.cells.serving(caller.tenant)
        body = validated(SubmitBody, parse_json(text))
        mode: AnswerMode = "stream" if request.stream else "hold"
        deadline = resolve_deadline(mode, body, _NO_HEADERS, context.settings, caller.policy)
        checks_of(body.escalate, streams=request.stream)
        generation = native_request(body, deadline, context.settings)
        generation = replace(
            generation,
            attempt=request.attempt,
            followed=int(request.stream),
            traceparent=request.traceparent or "",
            return_ticket=request.return_ticket or generation.return_ticket,
        )
        verdict = offer(context, caller, retrieve(context, caller, generation))
        if isinstance(verdict, Yield):
            self._send(answers.with_ref(request.ref, verdict.body))
            return
        job = GateJob(verdict.view, request.ref, stream=request.stream, use=self._keys.use_of(caller))
        self._jobs.add(job)
        self._send(answers.accepted(request.ref, job.view))
        self._jobs.follow(job)

    def _send(self, frame: answers.Frame) -> bool:
        self._count(str(frame.get("status", "metrics")))
        return self._outbox.put(answers.to_line(frame))


def _refuse(frame: bytes) -> NoReturn:
    raise _no_room(find_ref(frame[:KEPT_BYTES]))


def _no_room(ref: answers.Ref) -> BadFrame:
    message = "clients without a valid key hold too many bytes; show a key first, with an auth frame"
    return BadFrame("auth_required", message, ref=ref)
