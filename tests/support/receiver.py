"""A receiver of webhooks: a real HTTP or HTTPS server that keeps what it was sent and answers as a test wants."""

import json
import subprocess
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from shared.accounts.webhook_secrets import parse_secrets
from tests.support.background_server import BackgroundServer
from tests.support.processes import wait_for
from web.webhooks.post import signed_headers

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


class Receiver(BackgroundServer):
    """The server. `statuses` are those of the next answers; all later ones are 204. `host` is what its URL names."""

    def __init__(self, port: int = 0, *, certificate: Path | None = None, host: str = "localhost") -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
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

        super().__init__(Handler, port, certificate=certificate)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://{host}:{self.port}/hook?from=penstock"

    def wait_for(self, number: int = 1, *, timeout_s: float = 60) -> list[Received]:
        """Wait until `count` requests have come; return all."""
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
