"""Clients without an API key that try to hold up the door, each on one connection; a program of its own.

`python -m bench.attackers PORT SECONDS KIND…` starts one attacker for each KIND. An attacker whose connection is closed
connects again. At the end the program prints, as JSON, how often each connected and how many bytes it sent.
"""

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_ENDLESS = b"Content-Length: 999999999999999\r\n\r\n"
_JSON = b"Content-Type: application/json\r\n"
_FILL = b"x" * 65_536
#: The bytes that each kind sends once after it has connected, and those that it then sends again and again.
KINDS: dict[str, tuple[bytes, bytes]] = {
    "keyless_post": (b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + _JSON + _ENDLESS, _FILL),
    "unknown_host": (b"POST /v1/jobs HTTP/1.1\r\nHost: evil\r\n" + _JSON + _ENDLESS, _FILL),
    "body_on_get": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + _ENDLESS, _FILL),
    "tiny_chunks": (
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + _JSON + b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n" * 8_192,
    ),
    "pipeline": (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 512),
    "endless_head": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X-Fill: 1\r\n" * 4_096),
}
#: Six connections with an endless body and two that pipeline.
STRANGERS = ("keyless_post", "unknown_host", "body_on_get", "tiny_chunks") * 2
SIX_BODIES = STRANGERS[:6]
TWO_PIPELINES = ("pipeline", "pipeline")

#: How long an attacker waits before it connects again, in seconds. The attack is about what a connection may do, not
#: about how many connections a second the kernel accepts.
_RECONNECT_S = 0.02


@dataclass
class Tally:
    """The counts of one attacker."""

    kind: str
    connections: int = 0
    sent_bytes: int = 0


@contextmanager
def attacking(port: int, kinds: tuple[str, ...], *, seconds: float = 600.0) -> Iterator[subprocess.Popen[str]]:
    """Run the attackers in a process of their own for the `with` block, and end them with it."""
    arguments = [sys.executable, "-m", "bench.attackers", str(port), str(seconds), *kinds]
    with subprocess.Popen(arguments, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def attack(port: int, tally: Tally, until_s: float) -> None:
    """Attack the door on this port of loopback until the moment `until_s` of the monotonic clock."""
    once, again = KINDS[tally.kind]
    while time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            tally.connections += 1
            connection.settimeout(0)
            _send_until_closed(connection, once, again, tally, until_s)
        time.sleep(_RECONNECT_S)


def _send_until_closed(connection: socket.socket, once: bytes, again: bytes, tally: Tally, until_s: float) -> None:
    """Send, and read what the door answers so that it can answer more, until the door closes the connection."""
    unsent = memoryview(once or again)
    while time.monotonic() < until_s:
        readable, writable, _ = select.select([connection], [connection], [], 1.0)
        if readable and not connection.recv(1 << 20):
            return
        if writable:
            sent = connection.send(unsent)
            tally.sent_bytes += sent
            unsent = unsent[sent:] or memoryview(again)


def main() -> None:
    """Run the attackers that the command line names, and print their tallies."""
    port, seconds, kinds = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    until_s = time.monotonic() + seconds
    tallies = [Tally(kind) for kind in kinds]
    threads = [threading.Thread(target=attack, args=(port, tally, until_s)) for tally in tallies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([asdict(tally) for tally in tallies]))


if __name__ == "__main__":
    main()
