"""Tests which connections a worker closes: idle ones when it stops, those of silent clients, and no others."""

import logging
import os
from collections.abc import Iterator

import gevent
import gevent.event
import gevent.socket
import pytest
from flask import Flask
from gunicorn.config import Config
from gunicorn.glogging import Logger

from web.request.responses import json_response
from web.server import worker as gunicorn_worker
from web.server.worker import DoorWorker, _IdleTimeout

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: The socket timeout, and the client's pause after each piece of an answer, in seconds. One pause is far shorter than
#: the timeout; all pauses of one answer together are about twice as long.
SOCKET_TIMEOUT_S, PAUSE_S = 0.5, 0.02


class Connection:
    """A greenlet that waits for a request and takes 10 ms to serve it."""

    def __init__(self) -> None:
        self.active: set[_IdleTimeout] = set()
        self.arrived = gevent.event.Event()
        self.request, self.served = False, False
        self.greenlet = gevent.spawn(self._run)
        gevent.sleep(0)
        (self.idle,) = self.active

    def _run(self) -> None:
        with _IdleTimeout(self.active, 60):
            self.request = self.arrived.wait()
        if self.request:
            gevent.sleep(0.01)
            self.served = True


def test_a_connection_without_a_request_is_ended_at_once():
    connection = Connection()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert not connection.request
    assert connection.active == set()


def test_a_request_that_arrives_when_its_connection_is_being_ended_is_served():
    connection = Connection()
    connection.arrived.set()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert connection.served


def test_ending_a_connection_twice_has_the_same_effect_as_ending_it_once():
    connection = Connection()
    connection.idle.end()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert not connection.request


def test_a_connection_that_is_idle_too_long_is_ended():
    active: set[_IdleTimeout] = set()
    with _IdleTimeout(active, 0.01):
        gevent.sleep(5)
        raise AssertionError("the wait was not ended")
    assert active == set()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[gevent.socket.socket]:
    """The client's end of a connection to a worker with long answers and a short socket timeout."""
    monkeypatch.setattr(gunicorn_worker, "SOCKET_TIMEOUT_S", SOCKET_TIMEOUT_S)
    app = Flask("long")
    app.add_url_rule("/", view_func=lambda: json_response({"text": "x" * 4_000_000}))
    config = Config()
    worker = DoorWorker(1, os.getpid(), [], None, 30, config, Logger(config))
    worker.wsgi = app
    listener = gevent.socket.socket(gevent.socket.AF_UNIX)
    listener.bind(str(tmp_path / "door.sock"))
    theirs, ours = gevent.socket.socketpair()
    serving = gevent.spawn(worker.handle, listener, ours, ("127.0.0.1", 1))
    yield theirs
    theirs.close()
    serving.get(timeout=5)
    listener.close()
    worker.tmp.close()


def _read_slowly(client: gevent.socket.socket) -> int:
    """Read a whole answer in small pieces with pauses, and return the size of its body in bytes."""
    client.sendall(GET)
    received = b""
    while len(received) < 4_000_000 and (piece := client.recv(65_536)):
        received += piece
        gevent.sleep(PAUSE_S)
    head, _, body = received.partition(b"\r\n\r\n")
    while len(body) < 4_000_012 and (piece := client.recv(65_536)):
        body += piece
    assert head.startswith(b"HTTP/1.1 200")
    return len(body)


def test_a_client_that_reads_slowly_but_steadily_gets_its_whole_answer(client):
    assert _read_slowly(client) == 4_000_012


def test_a_connection_may_be_idle_for_longer_than_the_socket_timeout(client):
    assert _read_slowly(client) == 4_000_012
    gevent.sleep(3 * SOCKET_TIMEOUT_S)
    assert _read_slowly(client) == 4_000_012


def test_a_client_that_reads_nothing_is_disconnected_without_a_warning_in_the_log(client, caplog):
    logging.getLogger("gunicorn.error").addHandler(caplog.handler)
    try:
        client.sendall(GET)
        gevent.sleep(3 * SOCKET_TIMEOUT_S)
        received = 0
        while piece := client.recv(65_536):
            received += len(piece)
    finally:
        logging.getLogger("gunicorn.error").removeHandler(caplog.handler)
    assert 0 < received < 4_000_000
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
