"""A receiver of webhooks: a real HTTP or HTTPS server that keeps what it was sent and answers as a test wants."""

import json
import ssl
import subprocess
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from shared.accounts.webhook_secrets import parse_secrets
from tests.support.processes import wait_for
from web.operations.webhooks.signature import signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


@dataclass(frozen=True)
class Received:
    """One request that the receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    def is_signed_with(self, secret: str) -> bool:
        """Return whether one of the signatures is the secret's."""
        signed = signed_headers(self.id, int(self.headers["webhook-timestamp"]), self.body, parse_secrets(secret))
        return signed["webhook-signature"] in self.headers["webhook-signature"].split(" ")


class Receiver:
    """The server. `statuses` are those of the next answers; all later ones are 204. `host` is what its URL names."""

    def __init__(self, port: int = 0, *, certificate: Path | None = None, host: str = "localhost") -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        #: While it is not set, requests wait for their answers.
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body))
                receiver.may_answer.wait(60)
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://{host}:{self.port}/hook?from=penstock"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, number: int = 1, *, timeout_s: float = 60) -> list[Received]:
        """Wait until so many requests have come; return all."""
        wait_for(lambda: len(self.received) >= number, f"{number} webhooks", timeout_s=timeout_s)
        return list(self.received)


def make_certificate(folder: Path) -> Path:
    """Make a certificate for localhost and 127.0.0.1 that is its own authority; return the file with it and its key."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the command openssl")
    both = folder / "both.pem"
    both.write_bytes((folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes())
    return both
