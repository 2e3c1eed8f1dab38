"""The HTTP client with which `penstock submit`, `jobs`, `job` and `cancel` call the door.

It uses only the standard library, which is enough for four kinds of request and one stream of events. httpx would be
one more dependency of every installation, and importing it would add 0.1 s (measured) to the start of each command.
"""

import itertools
import json
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import Any

from shared.cli.sse import ServerEvent, parse_json_object, read_events
from shared.clock import Clock, RealClock
from shared.errors import ConfigError, PenstockError
from shared.jobs.states import TERMINAL_STATES
from shared.store.keys import is_tenant_name

Json = dict[str, Any]

#: Read timeout in seconds. The door answers ordinary requests at once, and on a stream of events it sends a comment
#: every 5 s. If nothing arrives for longer than the timeout, the connection is dead.
_READ_TIMEOUT_S = 15.0
#: The pauses in seconds before the retries of a request that got no answer. A door restarts within a few seconds.
_RETRY_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
#: How long polling continues, in seconds, while the door answers every poll with `yield` because its store is down.
_MAX_OUTAGE_S = 60.0
#: The pause before the next poll, in ms, if the door's answer does not contain one.
_DEFAULT_POLL_MS = 500

_TERMINAL = frozenset(state.value for state in TERMINAL_STATES)
#: Text that is safe both in a header value and in a request line: printable ASCII without the space.
_PRINTABLE_ASCII = re.compile(r"[!-~]+")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class DoorError(PenstockError):
    """The door could not be reached (`status` is 0), or it answered with an error. The message says which."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class YieldAnswer:
    """The door's answer `yield`: the job was refused. Methods return this object and do not raise it."""

    reason: str
    #: The time after which a retry is likely to be admitted, in ms. None if the door advises against a retry.
    retry_hint_ms: int | None
    message: str
    #: The complete response body.
    body: Json


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: Message
    body: Json


class JobClient:
    """Client of one door with one API key.

    Every method raises DoorError if the door cannot be reached or answers with an error.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        tenant: str = "",
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Send `tenant` as X-Tenant with each request. Raise ConfigError if the URL, key or tenant is malformed."""
        host = _parse_host(url)
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": "penstock"}
        if api_key:
            if not _PRINTABLE_ASCII.fullmatch(api_key):
                raise ConfigError("PENSTOCK_API_KEY is not a valid key: only printable ASCII without spaces is allowed")
            self._headers["Authorization"] = f"Bearer {api_key}"
        if tenant:
            if not is_tenant_name(tenant):
                raise ConfigError(f"tenant={tenant!r} is not a tenant name: 1 to 64 letters, digits, '_' and '-'")
            self._headers["X-Tenant"] = tenant
        # Ignore http_proxy for a loopback URL: a proxy on another machine would connect to its own loopback address.
        proxies = [urllib.request.ProxyHandler({})] if host in _LOOPBACK else []
        self._opener = urllib.request.build_opener(_NoRedirect, *proxies)
        self._clock = clock or RealClock()
        self._sleep = sleep

    def submit(
        self, body: Json, *, wait_s: float = 0, on_yield: Callable[[YieldAnswer], None] | None = None
    ) -> Json | YieldAnswer:
        """Submit a job. Return the admitted job, or the last `yield` if the door did not admit it.

        After a `yield`, call `on_yield`, wait for the time of the retry hint and submit again, unless this wait would
        end more than `wait_s` seconds after the first submission. All submissions carry the same Idempotency-Key, so
        that the job is admitted only once even if an answer is lost.
        """
        key = str(uuid.uuid4())
        until = self._clock.monotonic() + wait_s
        for attempt in itertools.count():
            # X-Attempt tells the door which requests are retries, so that it can measure how accurate its hints are.
            headers = {"Idempotency-Key": key, "X-Attempt": str(attempt)}
            answer = self._job_or_yield(self._send("POST", "/v1/jobs", body, headers))
            if not isinstance(answer, YieldAnswer) or answer.retry_hint_ms is None:
                return answer
            pause_s = answer.retry_hint_ms / 1000
            if self._clock.monotonic() + pause_s > until:
                return answer
            if on_yield is not None:
                on_yield(answer)
            self._sleep(pause_s)
        raise AssertionError("unreachable: itertools.count() never ends")

    def get_job(self, job_id: str) -> Json:
        """Return the job in its current state."""
        return self._require_job(self._job_or_yield(self._send("GET", _path(job_id))))

    def cancel(self, job_id: str) -> Json:
        """Cancel the job and return it. A job that was running is still `running` in the returned answer."""
        return self._require_job(self._job_or_yield(self._send("DELETE", _path(job_id))))

    def list_jobs(self, *, status: str | None = None, limit: int = 20, cursor: str | None = None) -> Json:
        """Return one page of the tenant's jobs, newest first: `data` holds the jobs, `cursor` selects the next page."""
        parameters = {"status": status, "limit": str(limit), "cursor": cursor}
        query = urllib.parse.urlencode({name: value for name, value in parameters.items() if value is not None})
        return self._require_job(self._job_or_yield(self._send("GET", f"/v1/jobs?{query}")))

    def poll(self, job: Json) -> Iterator[Json]:
        """Yield `job`, then the job as each poll returns it, until it has ended. The door sets the poll interval."""
        outage_began: float | None = None
        pause_ms = _poll_after_ms(job)
        while True:
            if outage_began is None:
                yield job
                if job["status"] in _TERMINAL:
                    return
            self._sleep(pause_ms / 1000)
            answer = self._job_or_yield(self._send("GET", _path(job["id"]), retry_refused=True))
            if isinstance(answer, YieldAnswer):
                now = self._clock.monotonic()
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
                        raise _door_error(_Reply(200, Message(), event.data))
                    yield event
                    if event.kind == "ended":
                        return
            except (OSError, HTTPException) as caught:
                error = caught
            if failures >= len(_RETRY_PAUSES_S):
                raise self._unreachable_error(error) from error
            self._sleep(_RETRY_PAUSES_S[failures])
            failures += 1

    def _stream(self, job_id: str, last_id: str) -> Iterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            with self._open("GET", f"{_path(job_id)}/events", None, headers) as response:
                yield from read_events(line.decode() for line in response)
        except urllib.error.HTTPError as error:
            with error:
                reply = _Reply(error.code, error.headers, parse_json_object(error.read()))
            if error.code < 500:
                raise _door_error(reply) from None
            raise HTTPException(f"status {error.code}") from None

    def _send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        *,
        retry_refused: bool = False,
    ) -> _Reply:
        """Send a request and return the reply. If no reply arrives, retry after each pause in _RETRY_PAUSES_S.

        Repeating a request is harmless, because job ids and Idempotency-Keys make the requests idempotent. If the
        connection is refused or the host is unknown, raise at once, so that the user sees the error without delay.
        With `retry_refused`, retry in these cases too: polling an admitted job has to survive a restart of the door.
        """
        for pause_s in (*_RETRY_PAUSES_S, None):
            try:
                with self._open(method, path, body, headers or {}) as response:
                    return _Reply(response.status, response.headers, parse_json_object(response.read()))
            except urllib.error.HTTPError as error:
                with error:
                    return _Reply(error.code, error.headers, parse_json_object(error.read()))
            except (OSError, HTTPException) as error:
                cause = getattr(error, "reason", error)
                refused = isinstance(cause, ConnectionRefusedError | socket.gaierror)
                if pause_s is None or (refused and not retry_refused):
                    raise self._unreachable_error(error) from error
                self._sleep(pause_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _open(self, method: str, path: str, body: Json | None, headers: dict[str, str]) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        all_headers = self._headers | headers | ({"Content-Type": "application/json"} if data is not None else {})
        url = self._url + path
        request = urllib.request.Request(url, data, all_headers, method=method)  # noqa: S310 - http(s), see _parse_host
        response: HTTPResponse = self._opener.open(request, timeout=_READ_TIMEOUT_S)
        return response

    def _job_or_yield(self, reply: _Reply) -> Json | YieldAnswer:
        if reply.body.get("status") == "yield":
            may_retry = reply.headers.get("x-should-retry", "true") != "false"
            hint = reply.body.get("retry_hint_ms") if may_retry else None
            message = str(reply.body.get("error", {}).get("message") or reply.body.get("reason"))
            return YieldAnswer(str(reply.body.get("reason")), hint, message, reply.body)
        if reply.status >= 300:
            raise _door_error(reply)
        if not ({"id", "status"} <= set(reply.body) or "data" in reply.body):
            raise DoorError(f"{self._url} answered {reply.status} without a job; is PENSTOCK_URL a Penstock door?")
        return reply.body

    def _require_job(self, answer: Json | YieldAnswer) -> Json:
        """Return the job. Raise DoorError if the door answered `yield`, as it does while its store is unavailable."""
        if isinstance(answer, YieldAnswer):
            raise DoorError(f"the door cannot answer now: {answer.message}", status=503, code=answer.reason)
        return answer

    def _unreachable_error(self, error: Exception) -> DoorError:
        cause = getattr(error, "reason", error)
        return DoorError(f"no answer from {self._url} (PENSTOCK_URL): {cause or type(cause).__name__}")


def _parse_host(url: str) -> str:
    """Return the host of an http or https URL. Raise ConfigError for any other text."""
    try:
        parts = urllib.parse.urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.port != 0 and _PRINTABLE_ASCII.fullmatch(url)
    except ValueError:
        valid = None
    if not valid or not parts.hostname:
        raise ConfigError(f"PENSTOCK_URL={url!r} does not look like http://host:port")
    return parts.hostname


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because urllib would send the API key to the host that the redirect names."""

    def redirect_request(self, *_args: object, **_named: object) -> None:
        """Return None, so that urllib raises the redirect as an HTTPError."""


def _path(job_id: str) -> str:
    return f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}"


def _poll_after_ms(job: Json) -> int:
    return int((job.get("queue") or {}).get("poll_after_ms") or _DEFAULT_POLL_MS)


def _door_error(reply: _Reply) -> DoorError:
    """Return an exception for the error in a reply. Status 200 means that the error was an event in a stream."""
    error = reply.body.get("error")
    error = error if isinstance(error, dict) else {"message": str(error or reply.body)[:200]}
    field = f" ({error['param']})" if error.get("param") else ""
    prefix = f"the door answered {reply.status}" if reply.status != 200 else "the door ended the stream with an error"
    return DoorError(
        f"{prefix}: {error.get('message')}{field}",
        status=reply.status,
        code=str(error.get("code") or ""),
    )
