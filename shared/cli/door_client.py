"""The connection of commands to the door: requests with an API key, repeated if no answer arrives.

It uses only the standard library, which is enough for a few kinds of request and one stream of events. httpx would be
one more dependency of every installation, and importing it would add 0.1 s (measured) to the start of each command.
"""

import json
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Protocol

from shared.cli.sse import parse_json_object
from shared.clock import Clock, RealClock
from shared.errors import ConfigError, PenstockError
from shared.proxies import proxy_handler
from shared.store.keys import is_tenant_name

Json = dict[str, Any]

#: Read timeout in seconds. The door answers ordinary requests at once, and on a stream of events it sends a comment
#: every 5 s. If nothing arrives for longer than the timeout, the connection is dead.
_READ_TIMEOUT_S = 15.0
#: The pauses in seconds before the retries of a request that got no answer. A door restarts within a few seconds.
RETRY_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0)

#: Text that is safe both in a header value and in a request line: printable ASCII without the space.
_PRINTABLE_ASCII = re.compile(r"[!-~]+")


class DoorError(PenstockError):
    """The door could not be reached (`status` is 0), or it answered with an error. The message says which."""

    def __init__(self, message: str, *, status: int = 0, code: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        #: The wait before the next request that the answer asks for; 0 without one.
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Reply:
    """The status, headers and body of an answer; the body is empty if it was no JSON object."""

    status: int
    headers: Message
    body: Json


class Upload(Protocol):
    """A body that is sent part by part. The headers of its request must have its Content-Type and Content-Length."""

    def read(self, size: int = ..., /) -> bytes:
        """Return the next bytes, b"" at the end."""


class DoorClient:
    """Client of one door with one API key.

    Every method raises DoorError if the door cannot be reached.
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
        _check_url(url)
        self.url = url.rstrip("/")
        self.headers = {"Accept": "application/json", "User-Agent": "penstock"}
        if api_key:
            if not _PRINTABLE_ASCII.fullmatch(api_key):
                raise ConfigError("PENSTOCK_API_KEY is not a valid key: only printable ASCII without spaces is allowed")
            self.headers["Authorization"] = f"Bearer {api_key}"
        if tenant:
            if not is_tenant_name(tenant):
                raise ConfigError(f"tenant={tenant!r} is not a tenant name: 1 to 64 letters, digits, '_' and '-'")
            self.headers["X-Tenant"] = tenant
        self._opener = urllib.request.build_opener(_NoRedirect, _HttpHandler, _HttpsHandler, proxy_handler(url))
        self.clock = clock or RealClock()
        self.sleep = sleep

    def send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        *,
        retry_refused: bool = False,
    ) -> Reply:
        """Send a request and return the reply. If no reply arrives, retry after each pause in RETRY_PAUSES_S.

        Repeating a request is harmless, because job ids and Idempotency-Keys make the requests idempotent. If the
        connection is refused or the host is unknown, raise at once, so that the user sees the error without delay.
        With `retry_refused`, retry in these cases too: polling an admitted job has to survive a restart of the door.
        """
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                with self.open(method, path, body, headers or {}) as response:
                    return Reply(response.status, response.headers, parse_json_object(response.read()))
            except urllib.error.HTTPError as error:
                with error:
                    return Reply(error.code, error.headers, parse_json_object(error.read()))
            except (OSError, HTTPException) as error:
                cause = getattr(error, "reason", error)
                refused = isinstance(cause, ConnectionRefusedError | socket.gaierror)
                if pause_s is None or (refused and not retry_refused):
                    raise self.unreachable_error(error) from error
                self.sleep(pause_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def open(
        self,
        method: str,
        path: str,
        body: Json | Upload | None,
        headers: dict[str, str],
        *,
        timeout_s: float = _READ_TIMEOUT_S,
    ) -> HTTPResponse:
        """Send a request once, and wait for `timeout_s` whenever nothing arrives. The caller closes the response.

        Raises HTTPError for a status from 300 on, and OSError or HTTPException if there is no answer.
        """
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        all_headers = self.headers | headers | ({"Content-Type": "application/json"} if isinstance(body, dict) else {})
        url = self.url + path
        request = urllib.request.Request(url, data, all_headers, method=method)  # noqa: S310 - http(s), see _check_url
        response: HTTPResponse = self._opener.open(request, timeout=timeout_s)
        return response

    def unreachable_error(self, error: Exception) -> DoorError:
        """Return the exception for a request that got no answer."""
        cause = getattr(error, "reason", error)
        return DoorError(f"no answer from {self.url} (PENSTOCK_URL): {cause or type(cause).__name__}")


def _check_url(url: str) -> None:
    """Raise ConfigError if the text is not an http or https URL."""
    try:
        parts = urllib.parse.urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.port != 0 and _PRINTABLE_ASCII.fullmatch(url)
    except ValueError:
        valid = None
    if not valid or not parts.hostname:
        raise ConfigError(f"PENSTOCK_URL={url!r} does not look like http://host:port")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ConfigError(
            f"PENSTOCK_URL={url!r} ends with /v1, as only the base URL of OpenAI's clients does; leave it out"
        )


class _ReadsEarlyAnswer(HTTPConnection):
    """A connection that has an answer also if the door sent it, and closed, before it had read the whole body."""

    def request(self, *arguments: Any, **named: Any) -> None:
        """Send a request. If the connection breaks meanwhile, return, so that the caller looks for an answer."""
        try:
            super().request(*arguments, **named)
        except (BrokenPipeError, ConnectionResetError):
            # Without a connection, nothing can have been answered.
            if self.sock is None:
                raise


class _SecureReadsEarlyAnswer(_ReadsEarlyAnswer, HTTPSConnection):
    """The same with TLS."""


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_ReadsEarlyAnswer, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_SecureReadsEarlyAnswer, req, context=self._context)  # type: ignore[attr-defined]  # private


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because urllib would send the API key to the host that the redirect names."""

    def redirect_request(self, *_args: object, **_named: object) -> None:
        """Return None, so that urllib raises the redirect as an HTTPError."""


def door_error(reply: Reply) -> DoorError:
    """Return an exception for the error in a reply. Status 200 means that the error was an event in a stream."""
    error = reply.body.get("error")
    error = error if isinstance(error, dict) else {"message": str(error or reply.body)[:200]}
    field = f" ({error['param']})" if error.get("param") else ""
    prefix = f"the door answered {reply.status}" if reply.status != 200 else "the door ended the stream with an error"
    return DoorError(
        f"{prefix}: {error.get('message')}{field}",
        status=reply.status,
        code=str(error.get("code") or ""),
        retry_after_s=_seconds(reply.headers.get("Retry-After")),
    )


def checked_body(reply: Reply, field: str) -> Json:
    """Return the body of a reply, which has this field if a door sent it. Raises DoorError."""
    if reply.status >= 300:
        raise door_error(reply)
    if field not in reply.body:
        raise DoorError(f"the door answered {reply.status} without {field!r}; is PENSTOCK_URL a Penstock door?")
    return reply.body


def _seconds(text: str | None) -> float:
    """Return the seconds that a Retry-After header names; 0 if it names a date or is missing."""
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,6}", text) else 0.0
