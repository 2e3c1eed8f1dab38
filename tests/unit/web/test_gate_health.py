"""The gate's server for probes and scrapes: nothing that a client sends may stop the gate's event loop."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import gevent
import gevent.socket
import pytest

from web.gate.health import ProbeServer

ENDLESS = [
    b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n",
    b"POST /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /health HTTP/1.1\r\n",
]
FILL = [b"x" * 65_536, b"1\r\nx\r\n" * 8_192, b"X-Fill: 1\r\n" * 4_096]


@pytest.fixture
def port() -> Iterator[int]:
    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "application/json")])
        if environ["PATH_INFO"] == "/metrics":
            return [b"x" * 30_000_000]
        return [json.dumps({"status": "ok"}).encode()]

    server = ProbeServer(("127.0.0.1", 0), app)
    server.start()
    yield server.server_port
    server.stop(timeout=1)


@pytest.mark.parametrize("index", range(3), ids=["body", "chunks", "head"])
def test_a_client_that_sends_without_end_does_not_stop_the_event_loop(port, index):
    stop = threading.Event()

    def attack() -> None:
        while not stop.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
                connection.sendall(ENDLESS[index])
                while not stop.is_set():
                    connection.sendall(FILL[index])

    threads = [threading.Thread(target=attack) for _ in range(3)]
    # If the event loop stood still, nothing in it could end the attack.
    limit = threading.Timer(20, stop.set)
    for thread in [limit, *threads]:
        thread.start()
    try:
        began = time.monotonic()
        for _ in range(20):
            gevent.sleep(0.01)
        assert time.monotonic() - began < 10
        assert not stop.is_set()
    finally:
        stop.set()
        limit.cancel()
        for thread in threads:
            while thread.is_alive():
                gevent.sleep(0.01)


def test_the_answer_to_a_request_with_an_unread_body_arrives(port):
    def ask() -> bytes:
        with gevent.socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
            return b"".join(iter(lambda: connection.recv(4_096), b""))

    answer = gevent.spawn(ask).get(timeout=20)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b'{"status": "ok"}')


def ask(port: int, address: str, path: bytes = b"/health") -> bytes:
    connection = gevent.socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address, 0))
    with connection:
        connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@contextmanager
def held(port: int, addresses: list[str], each: int, sent: bytes) -> Iterator[list[gevent.socket.socket]]:
    """Hold connections from these addresses. Each connection has sent the same bytes."""
    with ExitStack() as stack:
        connections = []
        for address in addresses * each:
            connection = gevent.socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address, 0))
            connections.append(stack.enter_context(connection))
            connection.sendall(sent)
        gevent.sleep(0.1)
        yield connections


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HTTP/1.1\r\nX-Slow: ", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"],
    ids=["silent", "trickling", "reading nothing"],
)
@pytest.mark.parametrize("count", [1, 10], ids=["one address", "ten addresses"])
def test_probes_are_answered_at_once_while_others_hold_all_connections(port, sent, count):
    addresses = [f"127.0.0.{index}" for index in range(2, 2 + count)]
    with held(port, addresses, 80 // count, sent):
        for address in ("127.0.0.1", "127.0.0.2"):
            began = time.monotonic()
            assert ask(port, address).endswith(b'{"status": "ok"}')
            # The connections could be held for 10 s each.
            assert time.monotonic() - began < 4


def test_one_address_cannot_end_the_connections_of_another(port):
    begun = b"GET /health HTTP/1.1\r\n"
    with held(port, ["127.0.0.1"], 1, begun) as [early], held(port, ["127.0.0.2"], 100, begun):
        early.sendall(b"Host: a\r\n\r\n")
        assert early.recv(65_536).startswith(b"HTTP/1.1 200")


def test_connections_that_are_reset_or_malformed_print_nothing(port, capfd):
    for sent in (
        b"GET /health HTTP/1.1\r\nX-Half: ",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"GET\r\n",
    ):
        with held(port, ["127.0.0.1"], 3, sent) as connections:
            for connection in connections:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(port, "127.0.0.1")
    # The door of an earlier test in this process may still look for its store, which has ended.
    printed = "".join(capfd.readouterr()).splitlines()
    assert [line for line in printed if "hub.store_away" not in line] == []
