"""An HTTP server on loopback that sends prepared answers in turn, for cases that a real door produces too rarely."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


def json_answer(status: int, body: Any, **headers: str) -> Answer:
    """Return an answer with a JSON body, or with the bytes unchanged."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def close_connection(_handler: BaseHTTPRequestHandler) -> None:
    """Send no answer and close the connection."""


def event_stream(text: str) -> Answer:
    """Return an answer that sends server-sent events and then closes the connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


class ScriptedDoor:
    """The answers that the door still has to send, and the requests that it has received."""

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.url = ""


@contextmanager
def scripted_door(*answers: Answer) -> Iterator[ScriptedDoor]:
    script = ScriptedDoor(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def take(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            body = json.loads(raw) if length and self.headers.get_content_type() == "application/json" else raw or None
            script.requests.append((self.command, self.path, dict(self.headers.items()), body))
            script.answers.pop(0)(self)
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = take  # noqa: N815 - the library looks for these names

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
