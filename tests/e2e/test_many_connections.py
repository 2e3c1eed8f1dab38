"""The door bounds its connections, in all and for each address, and answers health probes beyond every bound."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.processes import Stage, wait_for
from tests.support.served import Address, Served
from web.openapi import response_models

pytestmark = pytest.mark.ways("direct", reason="the test's clients have addresses of their own")

TOTAL, PER_ADDRESS = 16, 10
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SUBMIT = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    environ = {
        "PENSTOCK_AUTH": "required",
        "PENSTOCK_MAX_CONNECTIONS": str(TOTAL),
        "PENSTOCK_MAX_ADDRESS_CONNECTIONS": str(PER_ADDRESS),
        "PENSTOCK_TRUSTED_PROXIES": "127.0.0.9",
        "PENSTOCK_WEB_WORKERS": "1",
    }
    with Stage(tmp_path_factory.mktemp("bounds")) as stage, Served(stage, **environ) as served:
        yield served


@pytest.fixture
def clients(served: Address) -> Iterator["Clients"]:
    with ExitStack() as stack:
        yield Clients(served.port, stack)
    wait_for(lambda: connections(served) == 1, "the connections to be closed")


class Clients:
    """Opens connections from addresses of the loopback network."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port, self._stack = port, stack

    def connect(self, address: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=10, source_address=(address, 0))
        return self._stack.enter_context(connection)

    def hold(self, address: str, count: int) -> list[socket.socket]:
        """Open connections and have a request answered on each, so that the door certainly has them all."""
        held = [self.connect(address) for _ in range(count)]
        for connection in held:
            connection.sendall(HEALTH)
        for connection in held:
            assert b"HTTP/1.1 200" in connection.recv(65_536)
        return held

    def ask(self, address: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send a request on a new connection that the door closes; return the status, the headers and the body."""
        connection = self.connect(address)
        connection.sendall(request)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    received = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def figure(served: Address, start: str) -> float:
    lines = served.http.get("/metrics", headers={"Connection": "close"}).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


def connections(served: Address) -> float:
    return figure(served, "penstock_http_connections")


def refusal(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Return the status and code of an error that asks the client to retry."""
    status, headers, body = answer
    error = response_models.Error.model_validate(json.loads(body)).error
    assert (headers["retry-after-ms"], headers["retry-after"], headers["x-should-retry"]) == ("1000", "1", "true")
    return status, str(error.code)


def test_beyond_the_bound_of_an_address_only_health_is_served(served: Address, clients: Clients) -> None:
    refused = figure(served, 'penstock_http_turned_away_total{bound="address_full"')
    clients.hold("127.0.0.2", PER_ADDRESS)
    status, headers, _ = clients.ask("127.0.0.2", HEALTH)
    assert (status, headers["connection"]) == (200, "close")
    assert refusal(clients.ask("127.0.0.2", SUBMIT)) == (429, "address_full")
    assert figure(served, 'penstock_http_turned_away_total{bound="address_full"') == refused + 1
    # Another address is served as usual, and so is a proxy, whose clients are not its own.
    clients.hold("127.0.0.3", 1)
    clients.hold("127.0.0.9", 1)


def test_beyond_the_bound_of_the_process_only_health_is_served(served: Address, clients: Clients) -> None:
    held = clients.hold("127.0.0.2", PER_ADDRESS) + clients.hold("127.0.0.3", TOTAL - PER_ADDRESS)
    for address in ("127.0.0.4", "127.0.0.9"):
        status, _, body = clients.ask(address, HEALTH)
        assert (status, json.loads(body)["status"]) == (200, "ok")
    assert refusal(clients.ask("127.0.0.4", SUBMIT)) == (503, "connections_full")
    held[0].close()
    wait_for(lambda: clients.ask("127.0.0.4", SUBMIT.replace(b"Host", b"Connection: close\r\nHost"))[0] == 401, "room")


def test_a_flood_from_one_address_is_refused_at_once_and_health_is_answered_to_others(
    served: Address, clients: Clients
) -> None:
    clients.hold("127.0.0.2", PER_ADDRESS)
    silent = [clients.connect("127.0.0.2") for _ in range(200)]
    began = time.monotonic()
    assert clients.ask("127.0.0.5", HEALTH.replace(b"Host", b"Connection: close\r\nHost"))[0] == 200
    assert time.monotonic() - began < 5
    assert {refusal(read_answer(connection)) for connection in silent} == {(429, "address_full")}
    assert time.monotonic() - began < 10


def test_a_proxy_may_have_more_connections_than_one_client(served: Address, clients: Clients) -> None:
    clients.hold("127.0.0.9", PER_ADDRESS + 2)
