"""The HTTP client with which `penstock submit`, `jobs`, `job` and `cancel` call the door."""

import itertools
import urllib.error
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException

from shared.cli.door_client import RETRY_PAUSES_S, DoorClient, DoorError, Json, Reply, door_error
from shared.cli.sse import ServerEvent, parse_json_object, read_events
from shared.jobs.states import TERMINAL_STATES

#: How long polling continues, in seconds, while the door answers every poll with `yield` because its store is down.
_MAX_OUTAGE_S = 60.0
#: The pause before the next poll, in ms, if the door's answer does not contain one.
_DEFAULT_POLL_MS = 500

_TERMINAL = frozenset(state.value for state in TERMINAL_STATES)


@dataclass(frozen=True)
class YieldAnswer:
    """The door's answer `yield`: the job was refused. Methods return this object and do not raise it."""

    reason: str
    #: The time after which a retry is likely to be admitted, in ms. None if the door advises against a retry.
    retry_hint_ms: int | None
    message: str
    #: The complete response body.
    body: Json


class JobClient(DoorClient):
    """Client for the jobs of one tenant.

    Every method raises DoorError if the door cannot be reached or answers with an error.
    """

    def submit(
        self, body: Json, *, wait_s: float = 0, on_yield: Callable[[YieldAnswer], None] | None = None
    ) -> Json | YieldAnswer:
        """Submit a job. Return the admitted job, or the last `yield` if the door did not admit it.

        After a `yield`, call `on_yield`, wait for the time of the retry hint and submit again, unless this wait would
        end more than `wait_s` seconds after the first submission. All submissions carry the same Idempotency-Key, so
        that the job is admitted only once even if an answer is lost.
        """
        key = str(uuid.uuid4())
        until = self.clock.monotonic() + wait_s
        for attempt in itertools.count():
            # X-Attempt tells the door which requests are retries, so that it can measure how accurate its hints are.
            headers = {"Idempotency-Key": key, "X-Attempt": str(attempt)}
            answer = self._job_or_yield(self.send("POST", "/v1/jobs", body, headers))
            if not isinstance(answer, YieldAnswer) or answer.retry_hint_ms is None:
                return answer
            pause_s = answer.retry_hint_ms / 1000
            if self.clock.monotonic() + pause_s > until:
                return answer
            if on_yield is not None:
                on_yield(answer)
            self.sleep(pause_s)
        raise AssertionError("unreachable: itertools.count() never ends")

    def get_job(self, job_id: str) -> Json:
        return self._require_job(self._job_or_yield(self.send("GET", _path(job_id))))

    def cancel(self, job_id: str) -> Json:
        """Cancel the job and return it. A job that was running is still `running` in the returned answer."""
        return self._require_job(self._job_or_yield(self.send("DELETE", _path(job_id))))

    def run_again(self, job_id: str) -> Json | YieldAnswer:
        """Submit the request of an ended job once more. Return the new job, or a `yield` if it was not admitted."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return self._job_or_yield(self.send("POST", f"{_path(job_id)}/again", {}, headers))

    def list_jobs(self, *, status: str | None = None, limit: int = 20, cursor: str | None = None) -> Json:
        """Return one page of the tenant's jobs, newest first: `data` holds the jobs, `cursor` selects the next page."""
        parameters = {"status": status, "limit": str(limit), "cursor": cursor}
        query = urllib.parse.urlencode({name: value for name, value in parameters.items() if value is not None})
        return self._require_job(self._job_or_yield(self.send("GET", f"/v1/jobs?{query}")))

    def poll(self, job: Json) -> Iterator[Json]:
        """Yield `job`, then the job as each poll returns it, until it has ended. The door sets the poll interval."""
        outage_began: float | None = None
        pause_ms = _poll_after_ms(job)
        while True:
            if outage_began is None:
                yield job
                if job["status"] in _TERMINAL:
                    return
            self.sleep(pause_ms / 1000)
            answer = self._job_or_yield(self.send("GET", _path(job["id"]), retry_refused=True))
            if isinstance(answer, YieldAnswer):
                now = self.clock.monotonic()
                outage_began = now if outage_began is None else outage_began
                if now - outage_began > _MAX_OUTAGE_S:
                    self._require_job(answer)
                pause_ms = answer.retry_hint_ms or _DEFAULT_POLL_MS
            else:
                job, outage_began, pause_ms = answer, None, _poll_after_ms(answer)

    def follow(self, job_id: str) -> Iterator[ServerEvent]:
        """Yield the job's events from the first to `ended`. If the connection breaks, resume after the last event."""
        last_id = ""
        failures = 0
        while True:
            error: Exception = HTTPException("the stream ended before the job")
            try:
                for event in self._stream(job_id, last_id):
                    last_id, failures = event.id or last_id, 0
                    if event.kind == "error":
                        # The door has already sent status 200, so it reports a later error as an event.
                        raise door_error(Reply(200, Message(), event.data))
                    yield event
                    if event.kind == "ended":
                        return
            except (OSError, HTTPException) as caught:
                error = caught
            if failures >= len(RETRY_PAUSES_S):
                raise self.unreachable_error(error) from error
            self.sleep(RETRY_PAUSES_S[failures])
            failures += 1

    def _stream(self, job_id: str, last_id: str) -> Iterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            with self.open("GET", f"{_path(job_id)}/events", None, headers) as response:
                yield from read_events(line.decode() for line in response)
        except urllib.error.HTTPError as error:
            with error:
                reply = Reply(error.code, error.headers, parse_json_object(error.read()))
            if error.code < 500:
                raise door_error(reply) from None
            raise HTTPException(f"status {error.code}") from None

    def _job_or_yield(self, reply: Reply) -> Json | YieldAnswer:
        if reply.body.get("status") == "yield":
            may_retry = reply.headers.get("x-should-retry", "true") != "false"
            hint = reply.body.get("retry_hint_ms") if may_retry else None
            message = str(reply.body.get("error", {}).get("message") or reply.body.get("reason"))
            return YieldAnswer(str(reply.body.get("reason")), hint, message, reply.body)
        if reply.status >= 300:
            raise door_error(reply)
        if not ({"id", "status"} <= set(reply.body) or "data" in reply.body):
            raise DoorError(f"{self.url} answered {reply.status} without a job; is PENSTOCK_URL a Penstock door?")
        return reply.body

    def _require_job(self, answer: Json | YieldAnswer) -> Json:
        """Return the job. Raise DoorError if the door answered `yield`, as it does while its store is unavailable."""
        if isinstance(answer, YieldAnswer):
            raise DoorError(f"the door cannot answer now: {answer.message}", status=503, code=answer.reason)
        return answer


def _path(job_id: str) -> str:
    return f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}"


def _poll_after_ms(job: Json) -> int:
    return int((job.get("queue") or {}).get("poll_after_ms") or _DEFAULT_POLL_MS)
