"""Tests that the gate's outbox writes lines in order, is bounded, and disconnects a client that reads nothing."""

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.processes import wait_for
from web.gate.outbox import Outbox, wait_ready

BOUND = 100


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2_048)
    ours.settimeout(0)
    theirs.settimeout(10)
    yield ours, theirs
    ours.close()
    theirs.close()


def outbox(ours: socket.socket, *, stall_s: float = 20) -> Outbox:
    made = Outbox(ours, max_bytes=BOUND, stall_s=stall_s)
    made.start()
    return made


def fill(box: Outbox) -> threading.Thread:
    """Put lines until the outbox is full, and return the thread that is blocked in `put`."""
    progress = [0]

    def put() -> None:
        while box.put(b"x" * 50):
            progress[0] += 1

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    wait_for(lambda: box._unsent >= BOUND and progress[0] > 0, "the outbox to be full")
    return thread


def test_lines_are_written_in_their_order(sockets):
    ours, theirs = sockets
    box = outbox(ours)
    assert all(box.put(b"%d\n" % number) for number in range(50))
    box.finish()
    ours.close()
    assert theirs.makefile("rb").readlines() == [b"%d\n" % number for number in range(50)]


def test_finish_writes_the_lines_that_were_put_before_it_and_accepts_no_more(sockets):
    ours, theirs = sockets
    box = outbox(ours)
    reader = threading.Thread(target=lambda: got.append(theirs.recv(1 << 20)), daemon=True)
    got: list[bytes] = []
    box.put(b"last words\n")
    reader.start()
    box.finish()
    reader.join()
    assert got == [b"last words\n"]
    assert not box.put(b"too late\n")


def test_put_blocks_while_the_outbox_is_full(sockets):
    ours, theirs = sockets
    box = outbox(ours)
    putting = fill(box)
    held = box._unsent
    # A line is added whole while the outbox is below its bound, so the last one may exceed the bound.
    assert held < BOUND + 50
    theirs.recv(1 << 20)
    wait_for(lambda: wait_ready(theirs, select.POLLIN, 0), "more to be written")
    theirs.close()
    putting.join(20)
    assert not putting.is_alive()


def test_a_line_longer_than_the_bound_is_written_whole(sockets):
    ours, theirs = sockets
    box = outbox(ours)
    threading.Thread(target=lambda: box.put(b"y" * 100_000 + b"\n"), daemon=True).start()
    assert theirs.makefile("rb").readline() == b"y" * 100_000 + b"\n"
    box.finish()


def test_a_client_that_reads_nothing_is_disconnected(sockets):
    ours, theirs = sockets
    box = outbox(ours, stall_s=0.05)
    putting = fill(box)
    putting.join(20)
    assert not putting.is_alive()
    assert wait_ready(ours, select.POLLIN, 20)
    assert ours.recv(1) == b""
    box.finish()
    assert theirs.recv(1 << 20) != b""


def test_no_line_is_accepted_after_the_client_has_disconnected(sockets):
    ours, theirs = sockets
    box = outbox(ours)
    theirs.close()
    wait_for(lambda: not box.put(b"anybody?\n"), "the outbox to notice that the client is gone")
    box.finish()
