"""One request's WSGI environment, and gunicorn's response with fewer writes: its head is sent with the first part."""

import os
import time
from email.utils import formatdate
from typing import Any

from gunicorn.http.errors import (  # type: ignore[import-untyped]  # ships no types
    ConfigurationProblem,
    InvalidResponseHeader,
)
from gunicorn.http.wsgi import (  # type: ignore[import-untyped]  # ships no types
    HEADER_VALUE_RE,
    Response,
    base_environ,
    proxy_environ,
)
from gunicorn.util import unquote_to_wsgi_str  # type: ignore[import-untyped]  # ships no types

#: Names of headers that most answers have. gunicorn need not check them, nor whether they are about the connection.
_USUAL_NAMES = frozenset(
    {
        "Cache-Control",
        "Content-Type",
        "Location",
        "Retry-After",
        "X-Content-Type-Options",
        "retry-after-ms",
        "x-deadline-ms",
        "x-penstock-return-ticket",
        "x-request-id",
    }
)


class EnvironMaker:
    """Makes the environments of the requests of one process."""

    def __init__(self, cfg: Any) -> None:
        self._script_name = os.environ.get("SCRIPT_NAME", "")
        self._base = base_environ(cfg) | {"wsgi.multithread": True, "SCRIPT_NAME": self._script_name}

    def make(self, req: Any, sock: Any, addr: Any, listener_name: Any) -> dict[str, Any]:
        """Return the environment of a request from `addr`. Header lines of one name are joined with commas.

        Raises ConfigurationProblem for a path that does not begin with SCRIPT_NAME, which is the process's own.
        """
        if not req.path.startswith(self._script_name):
            raise ConfigurationProblem(f"the path {req.path!r} does not begin with {self._script_name!r}")
        path = req.path[len(self._script_name) :]
        environ: dict[str, Any] = self._base | {
            "wsgi.input": req.body,
            "gunicorn.socket": sock,
            "REQUEST_METHOD": req.method,
            "QUERY_STRING": req.query,
            "RAW_URI": req.uri,
            "SERVER_PROTOCOL": f"HTTP/{req.version[0]}.{req.version[1]}",
            "wsgi.url_scheme": req.scheme,
            "PATH_INFO": unquote_to_wsgi_str(path) if "%" in path else path,
        }
        repeated: dict[str, list[str]] = {}
        for name, value in req.headers:
            if name in {"CONTENT-TYPE", "CONTENT-LENGTH"}:
                environ[name.replace("-", "_")] = value
                continue
            variable = "HTTP_" + name.replace("-", "_")
            if variable in environ:
                repeated.setdefault(variable, [environ[variable]]).append(value)
            else:
                environ[variable] = value
        for variable, values in repeated.items():
            environ[variable] = ",".join(values)
        if isinstance(addr, tuple):
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = addr[0], str(addr[1])
        else:
            environ["REMOTE_ADDR"] = addr.decode() if isinstance(addr, bytes) else addr
        environ["SERVER_NAME"], environ["SERVER_PORT"] = _server_of(listener_name, environ)
        environ.update(proxy_environ(req))
        return environ


def _server_of(listener_name: Any, environ: dict[str, Any]) -> tuple[str, str]:
    """Return the name and the port of the server; on a Unix socket, those for which the client has asked."""
    if not isinstance(listener_name, str):
        return listener_name[0], str(listener_name[1])
    name, _, port = environ.get("HTTP_HOST", "").partition(":")
    return name or listener_name, port or ("443" if environ["wsgi.url_scheme"] == "https" else "80" if name else "")


class DoorResponse(Response):  # type: ignore[misc]  # its base class has no types
    """The response to one request."""

    headers_sent: bool

    def __init__(self, req: Any, sock: Any, cfg: Any) -> None:
        super().__init__(req, sock, cfg)
        self._unsent = b""

    @property
    def has_begun(self) -> bool:
        """Whether the client may have received a part of it."""
        return self.headers_sent and not self._unsent

    def process_headers(self, headers: list[tuple[str, str]]) -> None:
        """Keep the headers of the app. Raises InvalidResponseHeader for a value that could be read as another line."""
        for name, value in headers:
            if name not in _USUAL_NAMES:
                super().process_headers([(name, value)])
            elif HEADER_VALUE_RE.fullmatch(value):
                self.headers.append((name, value.strip(" \t")))
            else:
                raise InvalidResponseHeader(repr(name))

    def send_headers(self) -> None:
        """Prepare the head, which is sent with what follows."""
        if self.headers_sent:
            return
        version, connection = self.req.version, "close" if self.should_close() else "keep-alive"
        lines = [
            f"HTTP/{version[0]}.{version[1]} {self.status}",
            f"Server: {self.version}",
            f"Date: {_http_date()}",
            f"Connection: {connection}",
        ]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        lines += [f"{name}: {value}" for name, value in self.headers]
        self._unsent = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        self.headers_sent = True

    def _emit_body(self, data: bytes) -> None:
        self._send(b"%X\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def _send(self, data: bytes) -> None:
        data, self._unsent = self._unsent + data, b""
        # Nearly all are sent whole by this call. gevent's `sendall` costs more: it measures the time of all its calls,
        # and asks the kernel for the size of the buffer.
        if data and (rest := data[self.sock.send(data) :]):
            self.sock.sendall(rest)

    def write(self, arg: bytes) -> None:
        """Send a part of the body; if it is the first one, also the head, even if the part is empty."""
        super().write(arg)
        if self._unsent:
            self._send(b"")

    def sendfile(self, respiter: Any) -> bool:
        """Send a file after the head; return False if it has to be sent in parts."""
        self.send_headers()
        self._send(b"")
        return bool(super().sendfile(respiter))

    def close(self) -> None:
        """Send the end."""
        self.send_headers()
        self._send(b"0\r\n\r\n" if self.chunked else b"")


#: The last second since the epoch for which a date was written, and that date.
_last_date = (0, "")


def _http_date() -> str:
    global _last_date  # noqa: PLW0603 - it is written once a second, and all responses of that second have it
    now_s = int(time.time())
    if now_s != _last_date[0]:
        _last_date = now_s, formatdate(now_s, usegmt=True)
    return _last_date[1]
