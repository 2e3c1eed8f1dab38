"""Speak HTTP to the door: submit, poll, follow and cancel; the client behind `penstock submit` and its kin.

The standard library is enough for four requests and a stream of events; httpx would weigh on every install
of every room and costs 0.1 s of each command's start, measured.
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

from shared.cli.sse import ServerEvent, object_in, read_events
from shared.clock import Clock, RealClock
from shared.errors import ConfigError, PenstockError
from shared.jobs.states import TERMINAL_STATES
from shared.store.keys import is_tenant_name

Json = dict[str, Any]

#: Seconds without a byte after which the door counts as gone. It answers at once, or within the wait that was
#: asked for, and sends a comment every 5 s on a stream.
_SILENCE_S = 15.0
#: Pauses, in seconds, before a request that got no answer is sent again: a door that restarts is back in a few.
_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)
#: A poll that the door answers with `yield` (its store is away) is worth repeating for this long, in seconds.
_OUTAGE_S = 60.0
#: The door names the next poll; this is for bodies that lack it.
_POLL_MS = 500

_ENDED = frozenset(state.value for state in TERMINAL_STATES)
#: What a header and a request line can carry.
_PLAIN = re.compile(r"[!-~]+")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class DoorError(PenstockError):
    """The door could not be reached (status 0) or answered with an error; the message says which."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Yielded:
    """The door did not take the job. A value, as at the door itself."""

    reason: str
    #: When coming back makes sense, in ms from now; None where the door promises nothing.
    retry_hint_ms: int | None
    message: str
    #: The answer's whole body.
    body: Json


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: Message
    body: Json


class JobClient:
    """One door, one key. Every method raises DoorError when the door cannot be reached or answers with an error."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        tenant: str = "",
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`tenant` goes into X-Tenant. Raises ConfigError for what no request could be made of."""
        host = _host_of(url)
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": "penstock"}
        if api_key:
            if not _PLAIN.fullmatch(api_key):
                raise ConfigError("PENSTOCK_API_KEY is no key: it holds blanks, or signs that are not ASCII")
            self._headers["Authorization"] = f"Bearer {api_key}"
        if tenant:
            if not is_tenant_name(tenant):
                raise ConfigError(f"tenant={tenant!r} is not 1 to 64 of letters, digits, '_' and '-'")
            self._headers["X-Tenant"] = tenant
        # A proxy for the outside world does not know this machine's loopback.
        proxies = [urllib.request.ProxyHandler({})] if host in _LOOPBACK else []
        self._opener = urllib.request.build_opener(_NoRedirect, *proxies)
        self._clock = clock or RealClock()
        self._sleep = sleep

    def submit(
        self, body: Json, *, wait_s: float = 0, on_yield: Callable[[Yielded], None] | None = None
    ) -> Json | Yielded:
        """Offer a job; answer the job as admitted, or the yield.

        On a yield it comes back after each hint, telling `on_yield`, as long as the hint ends within `wait_s`.
        One Idempotency-Key serves all tries, so that an answer lost on the way books nothing twice.
        """
        key = str(uuid.uuid4())
        until = self._clock.monotonic() + wait_s
        for attempt in itertools.count():
            # The door learns from X-Attempt how well its hints were.
            headers = {"Idempotency-Key": key, "X-Attempt": str(attempt)}
            answer = self._job_or_yield(self._ask("POST", "/v1/jobs", body, headers))
            if not isinstance(answer, Yielded) or answer.retry_hint_ms is None:
                return answer
            pause_s = answer.retry_hint_ms / 1000
            if self._clock.monotonic() + pause_s > until:
                return answer
            if on_yield is not None:
                on_yield(answer)
            self._sleep(pause_s)
        raise AssertionError("there is always a next attempt")

    def job(self, job_id: str) -> Json:
        """The job as it is now."""
        return self._need(self._job_or_yield(self._ask("GET", _path(job_id))))

    def cancel(self, job_id: str) -> Json:
        """Ask for the job's end; answer the job, which may still be running."""
        return self._need(self._job_or_yield(self._ask("DELETE", _path(job_id))))

    def jobs(self, *, status: str | None = None, limit: int = 20, cursor: str | None = None) -> Json:
        """A page of own jobs, newest first: `data` and the next `cursor`."""
        asked = {"status": status, "limit": str(limit), "cursor": cursor}
        query = urllib.parse.urlencode({name: value for name, value in asked.items() if value is not None})
        return self._need(self._job_or_yield(self._ask("GET", f"/v1/jobs?{query}")))

    def watch(self, job: Json) -> Iterator[Json]:
        """The job as it was given, then as each poll finds it, the last time ended. Polls when the door says."""
        away_since: float | None = None
        pause_ms = _poll_after_ms(job)
        while True:
            if away_since is None:
                yield job
                if job["status"] in _ENDED:
                    return
            self._sleep(pause_ms / 1000)
            answer = self._job_or_yield(self._ask("GET", _path(job["id"]), patient=True))
            if isinstance(answer, Yielded):
                now = self._clock.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since > _OUTAGE_S:
                    self._need(answer)
                pause_ms = answer.retry_hint_ms or _POLL_MS
            else:
                job, away_since, pause_ms = answer, None, _poll_after_ms(answer)

    def follow(self, job_id: str) -> Iterator[ServerEvent]:
        """The job's events from its first, the last one `ended`; a broken stream is taken up where it broke."""
        last_id = ""
        broken = 0
        while True:
            error: Exception = HTTPException("the stream ended before the job")
            try:
                for event in self._stream(job_id, last_id):
                    last_id, broken = event.id or last_id, 0
                    if event.kind == "error":
                        # The stream had begun as a success; this is how the door says that it was none.
                        raise _fault(_Reply(200, Message(), event.data))
                    yield event
                    if event.kind == "ended":
                        return
            except (OSError, HTTPException) as caught:
                error = caught
            if broken >= len(_PAUSES_S):
                raise self._unreachable(error) from error
            self._sleep(_PAUSES_S[broken])
            broken += 1

    def _stream(self, job_id: str, last_id: str) -> Iterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            with self._open("GET", f"{_path(job_id)}/events", None, headers) as response:
                yield from read_events(line.decode() for line in response)
        except urllib.error.HTTPError as error:
            with error:
                reply = _Reply(error.code, error.headers, object_in(error.read()))
            if error.code < 500:
                raise _fault(reply) from None
            raise HTTPException(f"status {error.code}") from None

    def _ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        *,
        patient: bool = False,
    ) -> _Reply:
        """One answer; a request without one is sent again, which ids and Idempotency-Keys make harmless.

        Where nobody listens it is kinder to say so at once than to insist, unless `patient`: a job is waited for.
        """
        for pause_s in (*_PAUSES_S, None):
            try:
                with self._open(method, path, body, headers or {}) as response:
                    return _Reply(response.status, response.headers, object_in(response.read()))
            except urllib.error.HTTPError as error:
                with error:
                    return _Reply(error.code, error.headers, object_in(error.read()))
            except (OSError, HTTPException) as error:
                why = getattr(error, "reason", error)
                hopeless = isinstance(why, ConnectionRefusedError | socket.gaierror) and not patient
                if pause_s is None or hopeless:
                    raise self._unreachable(error) from error
                self._sleep(pause_s)
        raise AssertionError("the last try either answers or raises")

    def _open(self, method: str, path: str, body: Json | None, headers: dict[str, str]) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        sent = self._headers | headers | ({"Content-Type": "application/json"} if data is not None else {})
        url = self._url + path
        request = urllib.request.Request(url, data, sent, method=method)  # noqa: S310 - __init__ lets http(s) through
        response: HTTPResponse = self._opener.open(request, timeout=_SILENCE_S)
        return response

    def _job_or_yield(self, reply: _Reply) -> Json | Yielded:
        if reply.body.get("status") == "yield":
            promised = reply.headers.get("x-should-retry", "true") != "false"
            hint = reply.body.get("retry_hint_ms") if promised else None
            message = str(reply.body.get("error", {}).get("message") or reply.body.get("reason"))
            return Yielded(str(reply.body.get("reason")), hint, message, reply.body)
        if reply.status >= 300:
            raise _fault(reply)
        if not ({"id", "status"} <= set(reply.body) or "data" in reply.body):
            raise DoorError(f"{self._url} answered {reply.status} without a job; is PENSTOCK_URL a door of Penstock?")
        return reply.body

    def _need(self, answer: Json | Yielded) -> Json:
        if isinstance(answer, Yielded):
            raise DoorError(f"the door cannot answer now: {answer.message}", status=503, code=answer.reason)
        return answer

    def _unreachable(self, error: Exception) -> DoorError:
        why = getattr(error, "reason", error)
        return DoorError(f"no answer from {self._url} (PENSTOCK_URL): {why or type(why).__name__}")


def _host_of(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.port != 0 and _PLAIN.fullmatch(url)
    except ValueError:
        fits = None
    if not fits or not parts.hostname:
        raise ConfigError(f"PENSTOCK_URL={url!r} does not look like http://host:port")
    return parts.hostname


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to whomever it names."""

    def redirect_request(self, *_args: object, **_named: object) -> None:
        """Never."""


def _path(job_id: str) -> str:
    return f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}"


def _poll_after_ms(job: Json) -> int:
    return int((job.get("queue") or {}).get("poll_after_ms") or _POLL_MS)


def _fault(reply: _Reply) -> DoorError:
    error = reply.body.get("error")
    error = error if isinstance(error, dict) else {"message": str(error or reply.body)[:200]}
    field = f" ({error['param']})" if error.get("param") else ""
    answered = f"the door answered {reply.status}" if reply.status != 200 else "the door broke off the stream"
    return DoorError(
        f"{answered}: {error.get('message')}{field}",
        status=reply.status,
        code=str(error.get("code") or ""),
    )
