"""Tests that a store that does not answer is named with its address and in time."""

import socket
import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from shared.errors import StoreUnavailable
from shared.store.connection import OPERATOR, open_client
from shared.store.preflight import FIRST_ANSWER_S, require_answer
from shared.store.store import Store
from tests.support.ports import free_port
from web.runtime.start import configure_store

#: Answers of a store that an operator's commands must reach, so that they can mend it.
ANSWERS = [
    b"-LOADING Redis is loading\r\n",
    b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL.\r\n",
    b"-MISCONF Errors writing to the AOF file: No space left on device\r\n",
    b"-NOPERM no permission\r\n",
    b"+PONG\r\n",
]


def first_contact(port: int, *, within_s: float = FIRST_ANSWER_S) -> None:
    url = f"redis://me:secret@127.0.0.1:{port}/0"
    with open_client(url, name="test", timeouts=OPERATOR) as client:
        require_answer(client, url, within_s=within_s)


def the_complaint(port: int, *, within_s: float = FIRST_ANSWER_S) -> str:
    with pytest.raises(StoreUnavailable, match=rf"the store at redis://me:\*\*\*@127\.0\.0\.1:{port}/0") as raised:
        first_contact(port, within_s=within_s)
    assert "secret" not in str(raised.value)
    return str(raised.value)


def test_a_store_that_accepts_and_says_nothing_is_given_up_before_the_commands_timeout():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        assert "longer than 0.2 s" in the_complaint(silent.getsockname()[1], within_s=0.2)


def test_a_store_that_accepts_no_connection_is_given_up():
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as full:
        address = full.getsockname()
        # The kernel drops what arrives while the queue is full, as a black hole on the way does.
        with closing(socket.socket()) as first, closing(socket.socket()) as second:
            for sock in (first, second):
                sock.settimeout(0)
                sock.connect_ex(address)
            assert "longer than 0.2 s" in the_complaint(address[1], within_s=0.2)


def test_a_refused_connection_is_named_with_the_reason():
    assert "refused" in the_complaint(free_port()).lower()


@pytest.mark.parametrize(
    ("command", "reply", "says"),
    [
        ("AUTH", b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no Redis or Valkey server"),
        ("AUTH", b"-WRONGPASS invalid username\r\n", "refuses the user or the password"),
        ("PING", b"", "cannot be reached"),
    ],
)
def test_a_server_that_is_no_store_or_refuses_the_password_or_hangs_up_is_named(answers_with, command, reply, says):
    assert says in the_complaint(answers_with(command, reply))


def test_a_door_or_gate_that_starts_names_the_store(settings):
    port = free_port()
    url = f"redis://me:secret@127.0.0.1:{port}/0"
    with (
        open_client(url, name="test", timeouts=OPERATOR) as client,
        pytest.raises(StoreUnavailable, match=rf"redis://me:\*\*\*@127\.0\.0\.1:{port}/0"),
    ):
        configure_store(replace(settings, redis_url=url), Store(client))


@pytest.mark.parametrize("reply", ANSWERS)
def test_any_answer_of_a_store_counts(answers_with, reply):
    first_contact(answers_with("PING", reply))


@pytest.fixture
def answers_with():
    """Return a function that starts a server and returns its port.

    The server answers every command with OK, except for one, which it answers with a given reply before it hangs up.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve(command: str, reply: bytes) -> None:
            connection = listener.accept()[0]
            with connection, connection.makefile("rb") as lines, suppress(OSError):
                while head := lines.readline():
                    words = [(lines.readline(), lines.readline())[1].strip() for _ in range(int(head[1:]))]
                    last = words[0].decode() == command
                    connection.sendall(reply if last else b"+OK\r\n")
                    if last:
                        return

        def start(command: str, reply: bytes) -> int:
            threading.Thread(target=serve, args=(command, reply), daemon=True).start()
            port: int = listener.getsockname()[1]
            return port

        yield start
