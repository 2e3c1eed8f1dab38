"""The outgoing lines of one connection, written in order and bounded in bytes; a slow client delays no other client."""

import math
import select
import socket
import threading
from collections import deque
from contextlib import suppress


def wait_ready(sock: socket.socket, event: int, timeout_s: float) -> bool:
    """Block until the socket is readable (select.POLLIN) or writable (select.POLLOUT); return False on timeout."""
    poller = select.poll()
    poller.register(sock.fileno(), event)
    return bool(poller.poll(max(0, math.ceil(timeout_s * 1_000))))


class Outbox:
    """The lines that wait to be written to a non-blocking socket, and the thread that writes them.

    If the client reads nothing for `stall_s` seconds, the socket is shut down, which also ends reading from the socket.
    The Outbox never closes the socket; the owner of the socket does.
    """

    def __init__(self, sock: socket.socket, *, max_bytes: int, stall_s: float) -> None:
        self._sock, self._max_bytes, self._stall_s = sock, max_bytes, stall_s
        self._changed = threading.Condition()
        #: The lock of `_changed` guards `_lines`, `_unsent`, `_finishing` and `_disconnected`.
        self._lines: deque[bytes] = deque()
        #: How many bytes are not yet written: those in `_lines` and the rest of the write in progress.
        self._unsent = 0
        self._finishing = False
        self._disconnected = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Start the thread that writes the lines."""
        self._thread.start()

    @property
    def disconnected(self) -> bool:
        """Whether a write has failed, because the client has disconnected or has read nothing for `stall_s` seconds."""
        return self._disconnected

    def set_max_bytes(self, max_bytes: int) -> None:
        """Change how many bytes may be unsent before `put` blocks."""
        with self._changed:
            self._max_bytes = max_bytes
            self._changed.notify_all()

    def put(self, line: bytes) -> bool:
        """Add a line. Blocks while `max_bytes` or more are unsent. Returns False if the line will not be written."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsent < self._max_bytes or self._disconnected or self._finishing)
            if self._disconnected or self._finishing:
                return False
            self._lines.append(line)
            self._unsent += len(line)
            self._changed.notify_all()
        return True

    def finish(self) -> None:
        """Accept no more lines, and block until the remaining lines are written or the client has disconnected."""
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
            if not self._write(data):
                return

    def _write(self, data: bytes) -> bool:
        """Write all of `data` and return True; if a write fails, shut the connection down and return False."""
        rest = memoryview(data)
        while rest:
            sent = self._send(rest)
            if sent is None:
                self._shut_down()
                return False
            rest = rest[sent:]
            with self._changed:
                self._unsent -= sent
                self._changed.notify_all()
        return True

    def _send(self, data: memoryview) -> int | None:
        """Send some of `data` and return how many bytes were sent.

        Returns None if the client has disconnected or reads nothing for `stall_s` seconds.
        """
        while True:
            try:
                return self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                if not wait_ready(self._sock, select.POLLOUT, self._stall_s):
                    return None
            except OSError:
                return None

    def _shut_down(self) -> None:
        with self._changed:
            self._disconnected = True
            self._lines.clear()
            self._changed.notify_all()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
