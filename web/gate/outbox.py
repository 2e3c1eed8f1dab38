"""What is to be written on one connection: bounded, in order, and slow for nobody but the client that reads slowly."""

import math
import select
import socket
import threading
from collections import deque
from contextlib import suppress


def ready(sock: socket.socket, what: int, timeout_s: float) -> bool:
    """Wait until the socket can be read (select.POLLIN) or written (select.POLLOUT); whether it can."""
    poller = select.poll()
    poller.register(sock.fileno(), what)
    return bool(poller.poll(max(0, math.ceil(timeout_s * 1_000))))


class Outbox:
    """Lines on their way to one client. The socket does not block; whoever made the outbox closes it.

    A client that takes nothing for `stall_s` is given up: the connection is shut down, which its reader sees.
    """

    def __init__(self, sock: socket.socket, *, most_bytes: int, stall_s: float) -> None:
        self._sock, self._most_bytes, self._stall_s = sock, most_bytes, stall_s
        self._changed = threading.Condition()
        #: Under the condition's lock. `_unsent` counts what is being written, too.
        self._lines: deque[bytes] = deque()
        self._unsent = 0
        self._finishing = False
        self._dead = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def dead(self) -> bool:
        """Whether the client was seen to be gone, or was given up."""
        return self._dead

    def put(self, line: bytes) -> bool:
        """Have a line written, when those before it leave room for it. False when nobody will read it."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsent < self._most_bytes or self._dead or self._finishing)
            if self._dead or self._finishing:
                return False
            self._lines.append(line)
            self._unsent += len(line)
            self._changed.notify_all()
        return True

    def finish(self) -> None:
        """Take no more lines, and wait until those that are there are written or given up."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._finishing)
                if not self._lines:
                    return
                data = b"".join(self._lines)
                self._lines.clear()
            if not self._written(data):
                return

    def _written(self, data: bytes) -> bool:
        rest = memoryview(data)
        while rest:
            sent = self._send(rest)
            if sent is None:
                self._die()
                return False
            rest = rest[sent:]
            with self._changed:
                self._unsent -= sent
                self._changed.notify_all()
        return True

    def _send(self, data: memoryview) -> int | None:
        """How much the client's side took; None when the client is gone or takes nothing."""
        while True:
            try:
                return self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                if not ready(self._sock, select.POLLOUT, self._stall_s):
                    return None
            except OSError:
                return None

    def _die(self) -> None:
        with self._changed:
            self._dead = True
            self._lines.clear()
            self._changed.notify_all()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
