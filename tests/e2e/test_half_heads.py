"""The unfinished heads of all clients share a budget of bytes; a head that is sent at once gets through."""

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shared.accounts.api_keys import ApiKeys
from tests.support.processes import Stage, wait_for
from tests.support.served import Address, Served
from web.openapi import response_models

pytestmark = pytest.mark.ways("direct", reason="a proxy reads the requests of its clients itself")

MAX_HEAD_BYTES = 65_536
#: Of such heads, two fit into the budget.
LONG_BYTES = 30_000
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environ = {
        "PENSTOCK_AUTH": "required",
        "PENSTOCK_MAX_OPEN_HEAD_BYTES": str(MAX_HEAD_BYTES),
        "PENSTOCK_REQUEST_HEAD_MS": "60000",
        "PENSTOCK_WEB_WORKERS": "1",
    }
    with Stage(tmp_path_factory.mktemp("heads")) as stage, Served(stage, **environ) as served:
        yield served


@pytest.fixture
def clients(served: Address) -> Iterator["Clients"]:
    with ExitStack() as stack:
        yield Clients(served.port, stack)
    wait_for(lambda: figure(served, "penstock_http_connections") == 1, "the connections to be closed")


class Clients:
    """Opens connections that each send the beginning of a head."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port, self._stack = port, stack

    def connect(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(("127.0.0.1", self._port), timeout=10))

    def begin(self, length: int) -> socket.socket:
        connection = self.connect()
        connection.sendall(unfinished_head(length))
        return connection


def unfinished_head(length: int) -> bytes:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    while (left := length - len(head)) > 100:
        head += b"X-Fill: " + b"x" * min(left - 10, 4_000) + b"\r\n"
    return head


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of the answer after which the door closes the connection."""
    received = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def is_open(connection: socket.socket) -> bool:
    """Return whether the door has neither answered on this connection nor closed it."""
    return select.select([connection], [], [], 0)[0] == []


def figure(served: Address, start: str) -> float:
    lines = served.http.get("/metrics", headers={"Connection": "close"}).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


def turned_away(served: Address) -> float:
    return figure(served, 'penstock_http_turned_away_total{bound="heads_full"')


def test_beyond_the_budget_the_longest_held_head_gets_one_clear_error(served: Address, clients: Clients) -> None:
    before = turned_away(served)
    held = []
    for count in range(1, 7):
        held.append(clients.begin(LONG_BYTES))
        wait_for(lambda count=count: turned_away(served) == before + max(0, count - 2), "the oldest head to be dropped")  # type: ignore[misc]
    for connection in held[:4]:
        status, headers, body = answer_of(connection)
        error = response_models.Error.model_validate(json.loads(body)).error
        assert (status, str(error.code)) == (503, "heads_full")
        assert "PENSTOCK_MAX_OPEN_HEAD_BYTES" in error.message
        assert headers["connection"] == "close"
        assert (headers["x-should-retry"], headers["retry-after-ms"]) == ("true", "1000")
    assert all(is_open(connection) for connection in held[4:])
    # A head that was not dropped can still be finished.
    held[5].sendall(b"Connection: close\r\n\r\n")
    assert answer_of(held[5])[0] == 200


def test_health_and_submits_are_answered_while_strangers_begin_long_heads_without_end(
    served: Address, clients: Clients
) -> None:
    key = ApiKeys(served.stage.client).create("blue").key
    # The longest head that is accepted, with a valid key, sent at once.
    submit = unfinished_head(LONG_BYTES).replace(b"GET /health", b"POST /v1/jobs") + b"Connection: close\r\n"
    submit += b"Authorization: Bearer " + key.encode() + b"\r\nContent-Length: 2\r\n\r\n{}"
    for _ in range(10):
        for _ in range(4):
            clients.begin(LONG_BYTES)
        began = time.monotonic()
        probe = clients.connect()
        probe.sendall(HEALTH.replace(b"Host", b"Connection: close\r\nHost"))
        assert answer_of(probe)[0] == 200
        authorized = clients.connect()
        authorized.sendall(submit)
        assert answer_of(authorized)[0] == 415
        assert time.monotonic() - began < 5


def test_a_short_head_is_dropped_only_when_there_is_no_long_one(served: Address, clients: Clients) -> None:
    short = [clients.begin(4_000) for _ in range(8)]
    for _ in range(4):
        clients.begin(LONG_BYTES)
    before = turned_away(served)
    clients.begin(LONG_BYTES)
    wait_for(lambda: turned_away(served) > before, "a long head to be dropped")
    assert all(is_open(connection) for connection in short)
    # The budget holds 16 of these: whoever begins many short heads loses the first of them.
    many = [clients.begin(4_000) for _ in range(40)]
    assert answer_of(short[0])[0] == 503
    many[-1].sendall(b"Connection: close\r\n\r\n")
    assert answer_of(many[-1])[0] == 200


def test_what_a_finished_or_closed_head_held_is_given_back(served: Address, clients: Clients) -> None:
    connection = clients.connect()
    connection.sendall(HEALTH)
    before = turned_away(served)
    for index in range(1, 7):
        # One connection that is used again, and others that are closed with half a head.
        connection.sendall(unfinished_head(LONG_BYTES) + b"\r\n")
        received = b""
        while received.count(b'"status":"ok"') < 1 + (index == 1):
            received += connection.recv(65_536)
        clients.begin(LONG_BYTES).close()
        wait_for(lambda: figure(served, "penstock_http_connections") == 2, "all but this connection to be closed")
    final = clients.begin(LONG_BYTES)
    final.sendall(b"Connection: close\r\n\r\n")
    assert answer_of(final)[0] == 200
    assert turned_away(served) == before
