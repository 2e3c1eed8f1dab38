"""Tests that the store's client reads only the reply of its own command, on a connection that is open."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from shared.store.connection import open_client


class Server:
    """A store of one thread: it answers each command on each connection with the next of `replies`."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65_536):
                is_setup = b"SETNAME" in data or b"CLIENT" in data
                connection.sendall(b"+OK\r\n" if is_setup else self.replies.pop(0))
        except OSError:
            return

    def close(self) -> None:
        self._listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


def test_a_connection_that_the_store_has_closed_is_replaced_before_the_next_command(server):
    client = open_client(server.url, name="test")
    server.replies = [b"$1\r\na\r\n", b"$1\r\nb\r\n"]
    assert client.get("one") == b"a"
    server.connections[0].shutdown(socket.SHUT_RDWR)
    assert client.get("two") == b"b"
    assert len(server.connections) == 2


def test_a_reply_that_came_too_many_is_never_read_as_that_of_the_next_command(server):
    client = open_client(server.url, name="test")
    server.replies = [b"$1\r\na\r\n$5\r\nwrong\r\n", b"$1\r\nb\r\n"]
    assert client.get("one") == b"a"
    assert client.get("two") == b"b"


def test_a_command_that_was_interrupted_gives_its_connection_to_nobody(server, monkeypatch):
    client = open_client(server.url, name="test")
    server.replies = [b"$1\r\na\r\n", b"$1\r\nb\r\n"]

    class Interrupted(BaseException):
        """As when a greenlet is killed."""

    connection = client.connection_pool.get_connection()
    monkeypatch.setattr(connection, "read_response", lambda: (_ for _ in ()).throw(Interrupted))
    client.connection_pool.release(connection)
    with pytest.raises(Interrupted):
        client.get("one")
    monkeypatch.undo()
    assert client.get("two") == b"b"


def test_an_error_reply_keeps_the_connection(server):
    client = open_client(server.url, name="test")
    server.replies = [b"-WRONGTYPE it is a list\r\n", b"$1\r\nb\r\n"]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.get("one")
    assert client.get("two") == b"b"
    assert len(server.connections) == 1
