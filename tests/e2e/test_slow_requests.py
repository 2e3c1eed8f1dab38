"""The head and the body of a request have a total time and size, and a client that exceeds one sees the error."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

import pytest

from shared.accounts.api_keys import ApiKeys
from tests.support.processes import Stage
from tests.support.served import Address, Served
from web.openapi import response_models

pytestmark = pytest.mark.ways("direct", reason="a proxy reads the requests of its clients itself")

HEAD_MS, BODY_MS, MAX_BODY_BYTES = 700, 900, 20_000
JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"
#: A body that arrives this slowly is never idle for long, so that only its total time can end it.
TRICKLE_S = 0.05


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environ = {
        "PENSTOCK_AUTH": "required",
        "PENSTOCK_REQUEST_HEAD_MS": str(HEAD_MS),
        "PENSTOCK_REQUEST_BODY_MS": str(BODY_MS),
        "PENSTOCK_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
        "PENSTOCK_WEB_WORKERS": "1",
    }
    with Stage(tmp_path_factory.mktemp("slow")) as stage, Served(stage, **environ) as served:
        yield served


@pytest.fixture
def with_key(served: Address) -> bytes:
    """The head of a submit with a valid key, without the fields of its body's length."""
    key = ApiKeys(served.stage.client).create("blue").key
    return b"POST /v1/jobs HTTP/1.1\r\n" + JSON + b"Authorization: Bearer " + key.encode() + b"\r\n"


class Client:
    """One connection to the door, with what it has received and not yet read."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._received = connection, b""

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def trickle(self, data: bytes) -> None:
        """Send one piece after the other until the door answers."""
        for piece in repeat(data):
            self.send(piece)
            self.connection.settimeout(TRICKLE_S)
            try:
                self._received = self.connection.recv(65_536)
            except TimeoutError:
                continue
            finally:
                self.connection.settimeout(10)
            return

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and body of the next answer."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            self._receive()
        first, *lines = self._received[:end].decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self._received = self._received[end + 4 :]
        status = int(first.split()[1])
        if status == 100:
            return status, headers, b""
        chunked = headers.get("transfer-encoding") == "chunked"
        while (chunked and not self._received.endswith(b"0\r\n\r\n")) or (
            not chunked and len(self._received) < int(headers["content-length"])
        ):
            self._receive()
        body, self._received = self._received, b""
        if chunked:
            body = b"".join(re.findall(rb"[0-9A-F]+\r\n(.+?)\r\n(?=[0-9A-F]+\r\n)", body, re.DOTALL))
        return status, headers, body

    def error(self) -> tuple[int, str, str, dict[str, str]]:
        """Return the status, code and message of the next answer, an error, and its headers."""
        status, headers, body = self.answer()
        error = response_models.Error.model_validate(json.loads(body)).error
        return status, str(error.code), error.message, headers

    def is_closed(self) -> bool:
        return self.connection.recv(65_536) == b""

    def _receive(self) -> None:
        data = self.connection.recv(65_536)
        assert data, self._received
        self._received += data


@contextmanager
def connected(served: Address) -> Iterator[Client]:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        yield Client(connection)


@pytest.mark.parametrize(
    ("framing", "piece"), [(b"Content-Length: 9000", b" "), (b"Transfer-Encoding: chunked", b"1\r\n \r\n")]
)
def test_a_body_that_trickles_gets_408_in_time(served: Address, with_key: bytes, framing: bytes, piece: bytes) -> None:
    with connected(served) as client:
        client.send(with_key + framing + b"\r\n\r\n")
        began = time.monotonic()
        client.trickle(piece)
        assert BODY_MS / 1_000 - 0.1 < time.monotonic() - began < 10
        status, code, message, headers = client.error()
        assert (status, code, headers["connection"]) == (408, "request_timeout", "close")
        assert "PENSTOCK_REQUEST_BODY_MS" in message
        assert client.is_closed()


def test_a_head_that_trickles_gets_408_in_time(served: Address) -> None:
    with connected(served) as client:
        client.send(b"GET /health HTTP/1.1\r\nX-Slow: ")
        began = time.monotonic()
        client.trickle(b"x")
        assert HEAD_MS / 1_000 - 0.1 < time.monotonic() - began < 10
        status, code, message, _ = client.error()
        assert (status, code) == (408, "request_timeout")
        assert "PENSTOCK_REQUEST_HEAD_MS" in message


def test_a_connection_without_a_first_request_is_closed_without_an_answer(served: Address) -> None:
    with connected(served) as client:
        assert client.is_closed()


def test_a_connection_is_kept_for_longer_between_two_requests(served: Address) -> None:
    with connected(served) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.answer()[0] == 200
        time.sleep(2 * HEAD_MS / 1_000)
        client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.answer()[0] == 200


@pytest.mark.parametrize("length", [1_048_576, 8 * 1_048_576])
@pytest.mark.parametrize("host", [b"localhost", b"evil"])
def test_a_client_that_sends_its_whole_body_first_sees_the_error(served: Address, length: int, host: bytes) -> None:
    with connected(served) as client:
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: " + host + b"\r\nContent-Type: application/json\r\n"
        client.send(head + b"Content-Length: %d\r\n\r\n" % length)
        client.send(b" " * length)
        status, _, _, headers = client.error()
        assert (status, headers["connection"]) == (401 if host == b"localhost" else 421, "close")
        assert client.is_closed()


@pytest.mark.parametrize(("length", "connection"), [(65_536, "keep-alive"), (65_537, "close")])
def test_an_unread_body_of_64_kib_costs_nothing_and_a_longer_one_the_connection(
    served: Address, length: int, connection: str
) -> None:
    with connected(served) as client:
        client.send(b"POST /v1/jobs HTTP/1.1\r\n" + JSON + b"Content-Length: %d\r\n\r\n" % length + b" " * length)
        status, _, _, headers = client.error()
        assert (status, headers["connection"]) == (401, connection)
        if connection == "close":
            assert client.is_closed()
        else:
            client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.answer()[0] == 200


def test_an_unread_body_that_never_comes_ends_its_connection(served: Address) -> None:
    with connected(served) as client:
        client.send(b"POST /v1/jobs HTTP/1.1\r\n" + JSON + b"Content-Length: 9000\r\n\r\n")
        assert client.error()[0] == 401
        assert client.is_closed()


def test_a_body_is_asked_for_only_after_the_key_was_checked(served: Address, with_key: bytes) -> None:
    body = b'{"prompt": "go", "max_tokens": 0}'
    expectation = b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connected(served) as client:
        client.send(with_key + expectation)
        assert client.answer()[0] == 100
        client.send(body)
        assert client.error()[:2] == (422, "invalid_value")
    with connected(served) as client:
        client.send(b"POST /v1/jobs HTTP/1.1\r\n" + JSON + expectation)
        status, code, _, headers = client.error()
        assert (status, code, headers["connection"]) == (401, "invalid_api_key", "close")


def test_chunks_that_are_mostly_framing_are_refused(served: Address, with_key: bytes) -> None:
    with connected(served) as client:
        client.send(with_key + b"Transfer-Encoding: chunked\r\n\r\n")
        client.send((b"1;" + b"x" * 4_000 + b"\r\n \r\n") * 60)
        assert client.error()[:2] == (413, "request_too_large")


def test_requests_that_are_sent_together_are_answered_in_their_order(served: Address) -> None:
    paths = [b"/health", b"/health/ready", b"/nowhere"]
    with connected(served) as client:
        client.send(b"".join(b"HEAD " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" for path in paths))
        client.connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: client.connection.recv(65_536), b""))
    assert re.findall(rb"^HTTP/1.1 (\d+)", received, re.MULTILINE) == [b"200", b"503", b"404"]
