"""The gate's server for probes and scrapes: nothing that a client sends may stop the gate's event loop."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import gevent
import gevent.socket
import pytest

from web.gate.health import make_server

ENDLESS = [
    b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n",
    b"POST /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /health HTTP/1.1\r\n",
]
FILL = [b"x" * 65_536, b"1\r\nx\r\n" * 8_192, b"X-Fill: 1\r\n" * 4_096]


@pytest.fixture
def port() -> Iterator[int]:
    def app(_environ, start_response):
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"status": "ok"}).encode()]

    server = make_server(("127.0.0.1", 0), app)
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
