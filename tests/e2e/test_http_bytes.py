"""Requests whose bytes break their own framing or are not HTTP get an error, and no job is admitted for them."""

import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.processes import wait_for
from tests.support.served import Address, Served, sim_served
from web.openapi import response_models

pytestmark = pytest.mark.ways("direct", reason="a proxy parses a request's bytes itself and answers bad ones")

BODY = b'{"prompt": "go", "max_tokens": 2}'


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sim_served(tmp_path_factory.mktemp("bytes")) as served:
        yield served


def exchange(served: Address, sent: bytes) -> tuple[int, bytes, dict[str, str]]:
    """Send these bytes and the end of the stream; return the status, body and headers of the answer."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    return int(first.split()[1]), body, {name.lower(): value for name, value in (line.split(": ") for line in lines)}


def post(*headers: bytes, body: bytes) -> bytes:
    lines = [b"POST /v1/jobs HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"", body])


CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (post(CHUNKED, body=b"zz\r\n" + BODY + b"\r\n0\r\n\r\n"), "not encoded in chunks"),
        (post(CHUNKED, body=b"2\r\n" + BODY + b"\r\n0\r\n\r\n"), "not encoded in chunks"),
        (post(CHUNKED, body=b"21\r\n" + BODY[:5]), "ended within a chunk"),
        (post(b"Content-Length: 900", body=BODY), "ended after 33 of 900 bytes"),
        (post(b"Content-Length: 900", body=b""), "ended after 0 of 900 bytes"),
    ],
)
def test_an_incomplete_or_misframed_body_is_400_and_no_job_is_admitted(
    served: Address, sent: bytes, reason: str
) -> None:
    status, body, _ = exchange(served, sent)
    error = response_models.Error.model_validate(json.loads(body)).error
    assert (status, error.code) == (400, "invalid_request")
    assert reason in error.message
    assert served.stage.stat("admitted") == 0
    assert served.process.log_lines("http.fault") == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v1/jobs?cursor=" + b"x" * 4_096 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Tenant: " + b"x" * 8_192 + b"\r\n\r\n", 431),
        (post(b"Content-Length: 33", b"Content-Length: 3", body=BODY), 400),
        (post(b"Content-Length: 3", CHUNKED, body=b"0\r\n\r\n"), 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /v1/jobs\r\n\r\n", 400),
    ],
)
def test_an_unparsable_request_gets_the_error_object_and_ends_its_connection(
    served: Address, sent: bytes, status: int
) -> None:
    answer_status, body, headers = exchange(served, sent)
    error = response_models.Error.model_validate(json.loads(body)).error
    assert (answer_status, error.code) == (status, "invalid_request")
    assert "the request could not be parsed" in error.message
    assert (headers["x-should-retry"], headers["content-length"]) == ("false", str(len(body)))
    assert served.http.get("/health").status_code == 200


def test_unparsable_requests_are_logged_with_their_id_and_do_not_fill_the_log(served: Address) -> None:
    began, before = time.monotonic(), len(served.process.log_lines("http.unreadable"))
    ids = [exchange(served, b"GET /v1/jobs\r\n\r\n")[2]["x-request-id"] for _ in range(200)]
    lines = served.process.log_lines("http.unreadable")[before:]
    # Each of the two processes logs one line a second.
    assert len(lines) <= 2 * (time.monotonic() - began + 1)

    def is_logged() -> bool:
        ids.append(exchange(served, b"GET /v1/jobs\r\n\r\n")[2]["x-request-id"])
        return ids[-1] in served.process.log_lines("http.unreadable")[-1]

    wait_for(is_logged, "a request to be logged")


@pytest.mark.ways("direct", reason="nginx refuses two Host headers and a Host with a fragment itself")
@pytest.mark.parametrize("hosts", [[b"localhost", b"evil.example"], [b"evil.example", b"localhost"], [b"localhost#@x"]])
def test_a_request_with_two_hosts_or_with_more_than_a_host_is_refused(served: Address, hosts: list[bytes]) -> None:
    lines = b"".join(b"Host: " + host + b"\r\n" for host in hosts)
    status, body, _ = exchange(served, b"GET /v1/queue HTTP/1.1\r\n" + lines + b"\r\n")
    error = response_models.Error.model_validate(json.loads(body)).error
    assert (status, error.code) in {(421, "unknown_host"), (400, "invalid_request")}


def test_no_header_changes_the_path_of_a_request(served: Address) -> None:
    request = b"GET /aside/health HTTP/1.1\r\nHost: localhost\r\nSCRIPT_NAME: /aside\r\n\r\n"
    assert exchange(served, request)[0] == 404
