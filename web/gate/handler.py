"""Carry out the frames of one connection: submit, cancel, status, metrics, auth and ping."""

from collections.abc import Callable
from dataclasses import replace

from werkzeug.datastructures import Headers

from shared.jobs.job import JobView
from web.api.body import validated
from web.api.deadline import AnswerMode, resolve_deadline
from web.api.refusals import Yield
from web.api.request_schema import SubmitBody, checks_of
from web.gate import answers
from web.gate.connection_keys import ConnectionKeys
from web.gate.jobs import ConnectionJobs, GateJob
from web.gate.requests import Auth, BadFrame, Cancel, Metrics, Ping, Request, Status, Submit
from web.http.api_errors import ApiError
from web.http.json_body import parse_json
from web.jobs.admission import offer
from web.jobs.callers import Caller
from web.jobs.cancel_on_disconnect import cancel_when_possible
from web.jobs.generation import native_request
from web.jobs.snapshots import read_totals
from web.jobs.tenant_jobs import refresh_job
from web.runtime.context import DoorContext

_NO_HEADERS = Headers()


class FrameHandler:
    """Carries out requests whose key has been checked, and sends the answers."""

    def __init__(
        self,
        context: DoorContext,
        jobs: ConnectionJobs,
        keys: ConnectionKeys,
        *,
        max_jobs: int,
        send: Callable[[answers.Frame], bool],
    ) -> None:
        """`max_jobs` is the maximum number of the connection's jobs in flight; `send` sends a frame."""
        self._context, self._jobs, self._keys = context, jobs, keys
        self._max_jobs, self._send = max_jobs, send
        #: Set when the gate is stopping, and never cleared. Every `submit` frame is then refused.
        self.stopping = False

    def handle(self, request: Request, caller: Caller | None) -> None:
        """Carry out one request and send its answer; `caller` is what ConnectionKeys.identify returned for it.

        Raises BadFrame, ApiError and StoreUnavailable.
        """
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
        if self.stopping:
            self._send(answers.stopping(request.ref))
            return
        if request.ref is not None and self._jobs.find(request.ref) is not None:
            raise BadFrame("invalid_value", f"ref={request.ref!r} is already in flight on this connection", param="ref")
        if len(self._jobs) >= self._max_jobs:
            message = f"{len(self._jobs)} jobs of this connection are in flight (PENSTOCK_GATE_MAX_FRAMES)"
            raise BadFrame("too_many_frames", message)
        text = request.text()
        assert caller is not None  # noqa: S101 - for mypy: every submit has a caller
        body = validated(SubmitBody, parse_json(text))
        mode: AnswerMode = "stream" if request.stream else "hold"
        deadline = resolve_deadline(mode, body, _NO_HEADERS, context.settings, caller.policy)
        checks_of(body.escalate, streams=request.stream)
        generation = native_request(body, deadline, context.settings)
        generation = replace(
            generation,
            attempt=request.attempt,
            traceparent=request.traceparent or "",
            return_ticket=request.return_ticket or generation.return_ticket,
        )
        verdict = offer(context, caller, generation)
        if isinstance(verdict, Yield):
            self._send(answers.with_ref(request.ref, verdict.body))
            return
        job = GateJob(verdict.view, request.ref, stream=request.stream, use=self._keys.use_of(caller))
        self._jobs.add(job)
        self._send(answers.accepted(request.ref, job.view))
        self._jobs.follow(job)
