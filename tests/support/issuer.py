"""An issuer of tokens: a real HTTP server with a discovery document and keys, which signs what a test wants."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

DISCOVERY, KEYS = "/.well-known/openid-configuration", "/keys"
AUDIENCE = "penstock"


def rsa_key(kid: str, bits: int = 2_048) -> RSAKey:
    return RSAKey.generate_key(bits, {"kid": kid, "use": "sig"})


class Issuer:
    """The server. `keys` are those that it publishes; `signer` is the one with which it signs.

    `answer`, if a test sets it, writes the answer to a path in place of the server.
    """

    def __init__(self) -> None:
        self.signer: RSAKey | ECKey | OctKey = rsa_key("first")
        self.keys = [self.signer.as_dict(private=False)]
        self.fetched: list[str] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None
        #: Set when the server ends, so that an answer that hangs ends too.
        self.ended = threading.Event()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetched.append(self.path)
                if issuer.answer is not None:
                    issuer.answer(self)
                    return
                found = {DISCOVERY: issuer.discovery(), KEYS: {"keys": issuer.keys}}.get(self.path)
                body = json.dumps(found).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._handler = Handler
        self._server: ThreadingHTTPServer | None = None
        self._thread = threading.Thread()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def discovery(self) -> dict[str, Any]:
        return {"issuer": self.url, "jwks_uri": self.url + KEYS}

    def fetches(self, path: str = KEYS) -> int:
        return self.fetched.count(path)

    def token(self, *, header: dict[str, Any] | None = None, lives_s: float = 300, **claims: Any) -> str:
        """Return a signed token of the user ada, with these claims in addition or instead; None removes a claim."""
        now_s = int(time.time())
        said = {"iss": self.url, "aud": AUDIENCE, "sub": "42", "email": "ada@example.org", "exp": now_s + lives_s}
        kept = {name: value for name, value in (said | claims).items() if value is not None}
        algorithm = {"RSA": "RS256", "EC": "ES256", "oct": "HS256"}[self.signer.key_type]
        marks = {"alg": algorithm, "kid": self.signer.kid} | (header or {})
        kept_marks = {name: value for name, value in marks.items() if value is not None}
        return jwt.encode(kept_marks, kept, self.signer, algorithms=[marks["alg"]])

    def rotate(self, kid: str = "second") -> None:
        """Sign with a new key, which replaces the old one."""
        self.signer = rsa_key(kid)
        self.keys = [self.signer.as_dict(private=False)]

    def start(self) -> None:
        """Listen at the same port as before, if there was one."""
        self.ended.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections."""
        self.ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer nothing for as long as the server lives; to be used as `answer`."""
        handler.wfile.flush()
        self.ended.wait(120)

    def pour(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer 100 MB; to be used as `answer`."""
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(100):
                handler.wfile.write(b" " * 1_000_000)
        except OSError:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
