"""A request keeps the value of its body, and not the bytes from which it was parsed."""

import tracemalloc
from collections.abc import Iterator

from flask import Flask, request
from gunicorn.http.body import Body, ChunkedReader, LengthReader
from gunicorn.http.unreader import IterUnreader

from web.request.body import DoorRequest, raw_body_digest

FILL = b" " * 4_096
PIECES = 256


def pieces() -> Iterator[bytes]:
    """A body of 1 MiB that is parsed to a small value."""
    yield b'{"prompt": "go"'
    for _ in range(PIECES):
        yield FILL
    yield b"}"


def chunks() -> Iterator[bytes]:
    for piece in pieces():
        yield b"%x\r\n" % len(piece) + piece + b"\r\n"
    yield b"0\r\n\r\n"


def held_after_parsing(body: Body, headers: dict[str, str]) -> tuple[int, str]:
    """Parse the body in a request; return how many more bytes are then held, and the body's digest."""
    app = Flask("body")
    app.request_class = DoorRequest
    app.config["MAX_CONTENT_LENGTH"] = 2_000_000
    headers |= {"Content-Type": "application/json"}
    environ = {"wsgi.input": body, "wsgi.input_terminated": True}
    with app.test_request_context("/", method="POST", headers=headers, environ_overrides=environ):
        tracemalloc.start()
        try:
            assert request.get_json() == {"prompt": "go"}
            held, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most > PIECES * len(FILL)
        return held, raw_body_digest()


def test_the_bytes_of_a_body_are_freed_as_soon_as_it_was_parsed():
    length = sum(map(len, pieces()))
    held, with_length = held_after_parsing(
        Body(LengthReader(IterUnreader(pieces()), length)), {"Content-Length": str(length), "x-request-id": "r" * 16}
    )
    assert held < 100_000
    unreader = IterUnreader(chunks())
    held, with_chunks = held_after_parsing(
        Body(ChunkedReader(None, unreader)), {"Transfer-Encoding": "chunked", "x-request-id": "r" * 16}
    )
    assert held < 100_000
    # The digest that identifies a repeat of the request is that of the bytes.
    assert with_length == with_chunks
    assert len(with_length) == 64
