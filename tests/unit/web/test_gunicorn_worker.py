"""Which connections a process ends: those without a request when it stops, those of silent clients, no other."""

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

from web import gunicorn_worker
from web.gunicorn_worker import DoorWorker, _Idle
from web.operations.responses import json_response

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: How long a client may be silent, and how long it rests between two pieces of an answer: which is far less, but takes
#: twice as long in all.
SILENCE_S, REST_S = 0.5, 0.02


class Connection:
    """A greenlet that waits for a request and serves it for a moment."""

    def __init__(self) -> None:
        self.among: set[_Idle] = set()
        self.came = gevent.event.Event()
        self.request, self.served = False, False
        self.greenlet = gevent.spawn(self._run)
        gevent.sleep(0)
        (self.idle,) = self.among

    def _run(self) -> None:
        with _Idle(self.among, 60):
            self.request = self.came.wait()
        if self.request:
            gevent.sleep(0.01)
            self.served = True


def test_a_connection_without_a_request_is_ended_at_once():
    connection = Connection()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert not connection.request
    assert connection.among == set()


def test_a_request_that_comes_at_the_moment_of_the_stop_is_served():
    connection = Connection()
    connection.came.set()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert connection.served


def test_a_connection_is_ended_twice_as_it_is_once():
    connection = Connection()
    connection.idle.end()
    connection.idle.end()
    connection.greenlet.get(timeout=5)
    assert not connection.request


def test_a_connection_that_idles_too_long_ends_by_itself():
    among: set[_Idle] = set()
    with _Idle(among, 0.01):
        gevent.sleep(5)
        raise AssertionError("the time was not over")
    assert among == set()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[gevent.socket.socket]:
    """A connection to a worker whose answers are long, and which bears no silence."""
    monkeypatch.setattr(gunicorn_worker, "SILENCE_S", SILENCE_S)
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
    """The bytes of a whole answer's body, taken one small piece after the other."""
    client.sendall(GET)
    came = b""
    while len(came) < 4_000_000 and (piece := client.recv(65_536)):
        came += piece
        gevent.sleep(REST_S)
    head, _, body = came.partition(b"\r\n\r\n")
    while len(body) < 4_000_011 and (piece := client.recv(65_536)):
        body += piece
    assert head.startswith(b"HTTP/1.1 200")
    return len(body)


def test_a_client_that_reads_slowly_and_steadily_has_its_whole_answer(client):
    assert _read_slowly(client) == 4_000_011


def test_a_connection_may_idle_longer_than_a_client_may_be_silent(client):
    assert _read_slowly(client) == 4_000_011
    gevent.sleep(3 * SILENCE_S)
    assert _read_slowly(client) == 4_000_011


def test_a_client_that_takes_nothing_is_given_up_and_is_no_fault_of_ours(client, caplog):
    logging.getLogger("gunicorn.error").addHandler(caplog.handler)
    try:
        client.sendall(GET)
        gevent.sleep(3 * SILENCE_S)
        came = 0
        while piece := client.recv(65_536):
            came += len(piece)
    finally:
        logging.getLogger("gunicorn.error").removeHandler(caplog.handler)
    assert 0 < came < 4_000_000
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
