"""Viewers of the console that read nothing: they are bounded, and they lose their places to those that read."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import wait_for
from tests.support.served import Served, sim_served
from web.console.feed import MAX_VIEWERS
from web.server.worker import SOCKET_TIMEOUT_S

pytestmark = pytest.mark.minutes


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Served]:
    """One process, and enough waiting jobs of long-named tenants to make every pass change a large panel."""
    with sim_served(tmp_path, PENSTOCK_SIM_DECODE_TPS="1", PENSTOCK_WEB_WORKERS="1") as served:
        for number in range(40):
            served.submit(f"tenant-{number:02}-{'x' * 50}", max_tokens=500, deadline_ms=600_000)
        yield served


def silent_viewer(door: Served) -> socket.socket:
    """Return a connection that asks for the stream, with the smallest buffer, and reads only the first byte."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_304)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", door.port))
    connection.sendall(f"GET /console/live HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\n\r\n".encode())
    assert connection.recv(1) == b"H"
    return connection


def opens(door: Served) -> bool:
    with door.http.stream("GET", "/console/live") as answer:
        return answer.status_code == 200 and "retry:" in next(answer.iter_text())


@pytest.mark.timeout(400)
def test_viewers_that_read_nothing_are_dropped_and_others_take_their_places(door):
    with ExitStack() as stack:
        for _ in range(MAX_VIEWERS):
            stack.enter_context(silent_viewer(door))
        assert not opens(door)
        # Everything else continues as usual.
        assert door.http.get("/health/ready").status_code == 200
        wait_for(lambda: opens(door), "a free place", timeout_s=6 * SOCKET_TIMEOUT_S)
