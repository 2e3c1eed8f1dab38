"""An HTTP server on loopback that gives prepared answers in turn: for what a real door does too rarely to wait for."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


def says(status: int, body: Any, **headers: str) -> Answer:
    """An answer with a JSON body (or the bytes as they are)."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def hangs_up(_handler: BaseHTTPRequestHandler) -> None:
    """No answer: the connection closes."""


def streams(text: str) -> Answer:
    """Server-sent events, and then the end of the connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


class Script:
    """A door that gives its answers in turn, and what it was asked."""

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.url = ""


@contextmanager
def a_door(*answers: Answer) -> Iterator[Script]:
    script = Script(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def take(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            script.asked.append((self.command, self.path, dict(self.headers.items()), body))
            script.answers.pop(0)(self)
            self.close_connection = True

        do_GET = do_POST = do_DELETE = take  # noqa: N815 - the library looks for these names

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
