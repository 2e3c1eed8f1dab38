"""Tests that the door's environments and responses are gunicorn's, and that a short answer is sent in one piece."""

from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.errors import InvalidResponseHeader
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader

from web.server.response import DoorResponse, EnvironMaker

POST = (
    b"POST /v1/jobs%20x?wait_ms=5 HTTP/1.1\r\nHost: door:81\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    b"X-Tenant: a\r\nAccept: a\r\nAccept: b\r\n\r\n{}"
)
GET = b"GET /health HTTP/1.1\r\n\r\n"
TCP = ("127.0.0.1", 8080)


class Wire:
    """A socket that keeps what is sent, piece by piece."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> int:
        self.sent.append(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)

    def sendfile(self, file: Any, offset: int, count: int) -> None:
        self.sent.append(file.read()[offset : offset + count])


def parsed(head: bytes, config: Config) -> Request:
    return Request(config, IterUnreader([head]), ("10.0.0.9", 4711))


@pytest.fixture
def config() -> Config:
    return Config()


def answer(config: Config, kind: type, parts: list[bytes], headers: list[tuple[str, str]], head: bytes = GET) -> Wire:
    wire = Wire()
    response = kind(parsed(head, config), wire, config)
    response.start_response("200 OK", headers)
    for part in parts:
        response.write(part)
    response.close()
    return wire


@pytest.mark.parametrize("head", [POST, GET, b"HEAD / HTTP/1.0\r\nHost: one\r\nX-A: \xe4\r\n\r\n"])
@pytest.mark.parametrize("address", [("10.0.0.9", 4711), "", b""])
@pytest.mark.parametrize("listener", [TCP, "/run/door.sock"])
@pytest.mark.parametrize("script", ["", "/"])
def test_the_app_gets_the_environment_that_gunicorn_makes(monkeypatch, config, head, address, listener, script):
    monkeypatch.setenv("SCRIPT_NAME", script)
    request, wire = parsed(head, config), Wire()
    _, theirs = wsgi.create(request, wire, address, listener, config)
    ours = EnvironMaker(config).make(request, wire, address, listener)
    for environ in (theirs, ours):
        environ.pop("wsgi.errors")
        environ.pop("wsgi.early_hints", None)
    # A worker with greenlets has more than one request at a time.
    assert ours == theirs | {"wsgi.multithread": True}


@pytest.mark.parametrize(
    ("parts", "headers", "head"),
    [
        ([b"abc"], [("Content-Length", "3"), ("x-request-id", "1")], GET),
        ([b"abc", b"", b"de"], [("Content-Type", "text/event-stream"), ("X-Accel-Buffering", "no")], GET),
        ([b"abc"], [("Content-Length", "3")], b"HEAD / HTTP/1.1\r\n\r\n"),
        ([b"abc"], [], b"GET / HTTP/1.0\r\n\r\n"),
        ([], [("Connection", "close"), ("Retry-After", " 1 ")], GET),
    ],
)
def test_the_client_gets_the_bytes_that_gunicorn_sends(monkeypatch, config, parts, headers, head):
    monkeypatch.setattr("gunicorn.util.http_date", lambda: "now")
    monkeypatch.setattr("web.server.response._http_date", lambda: "now")
    theirs, ours = (answer(config, kind, parts, headers, head) for kind in (wsgi.Response, DoorResponse))
    assert b"".join(ours.sent) == b"".join(theirs.sent)


def test_a_short_answer_is_sent_in_one_piece_and_a_stream_s_first_part_with_its_head(config):
    assert len(answer(config, DoorResponse, [b"abc"], [("Content-Length", "3")]).sent) == 1
    first, second, end = answer(config, DoorResponse, [b"abc", b"de"], []).sent
    assert first.endswith(b"\r\n\r\n3\r\nabc\r\n")
    assert (second, end) == (b"2\r\nde\r\n", b"0\r\n\r\n")


def test_an_empty_first_part_sends_the_head_at_once(config):
    response = DoorResponse(parsed(GET, config), wire := Wire(), config)
    response.start_response("200 OK", [])
    assert not response.has_begun
    response.write(b"")
    assert wire.sent[0].endswith(b"\r\n\r\n")
    assert response.has_begun


def test_a_file_is_sent_after_the_head(config, tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    response = DoorResponse(parsed(GET, config), wire := Wire(), config)
    response.start_response("200 OK", [("Content-Length", "3")])
    with (tmp_path / "file").open("rb") as file:
        response.write_file(wsgi.FileWrapper(file))
    response.close()
    assert wire.sent[0].endswith(b"\r\n\r\n")
    assert wire.sent[1:] == [b"abc"]


@pytest.mark.parametrize("name", ["x-request-id", "X-Other"])
def test_no_header_can_begin_another_line(config, name):
    response = DoorResponse(parsed(GET, config), Wire(), config)
    with pytest.raises(InvalidResponseHeader):
        response.start_response("200 OK", [(name, "a\r\nSet-Cookie: b")])
