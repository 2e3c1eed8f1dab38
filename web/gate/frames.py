"""Split a byte stream into frames, one per line, without I/O; skip frames that are too long without storing them."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

#: How many bytes of a discarded frame are kept. They are enough to find the frame's `ref` if it precedes the body.
KEPT_BYTES = 1_024
#: Stored bytes are divided into chunks of about this size. One long buffer would be copied to a new place whenever it
#: grows, and the many places of different sizes would fragment the process's memory.
_CHUNK_BYTES = 65_536


@dataclass(frozen=True)
class OversizedFrame:
    """The first bytes of a frame that exceeds the size limit. The rest of the frame is skipped."""

    beginning: bytes


class FrameReader:
    r"""Splits incoming bytes into lines, however the network has divided these bytes.

    At most `limit_bytes` are stored between two calls of `feed`. A line ends with `\n`. A `\r` before the `\n` is kept,
    because the JSON parser ignores it as whitespace. `discard_partial` may be called on any thread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept_bytes = min(KEPT_BYTES, limit_bytes)
        #: Guards the three fields below, because `discard_partial` may be called on another thread than `feed`.
        self._lock = threading.Lock()
        self._held: list[bytearray] = []
        self._held_bytes = 0
        self._skipping = False

    @property
    def held_bytes(self) -> int:
        """How many bytes of an incomplete frame are stored."""
        return self._held_bytes

    @property
    def partial(self) -> bool:
        """Whether the beginning of an incomplete frame is stored. False while a frame is being skipped."""
        return bool(self._held)

    def feed(self, data: bytes) -> Iterator[bytes | OversizedFrame]:
        """Yield each frame that these bytes complete, without its line end.

        For a frame over the size limit, an OversizedFrame is yielded as soon as the limit is exceeded, without waiting
        for the end of the line.
        """
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            frame = self._take_frame(data[begin:end])
            if frame is not None:
                yield frame
            begin = end + 1
        oversized = None
        with self._lock:
            if self._skipping or begin == len(data):
                return
            if self._held_bytes + len(data) - begin > self._limit_bytes:
                oversized = OversizedFrame((self._beginning() + data[begin:])[: self._kept_bytes])
                self._clear()
                self._skipping = True
            else:
                self._store(data[begin:])
        if oversized is not None:
            yield oversized

    def discard_partial(self) -> bytes:
        """Drop the incomplete frame and return its first bytes. The rest of the frame is skipped when it arrives."""
        with self._lock:
            beginning = self._beginning()
            self._skipping = self._skipping or bool(self._held)
            self._clear()
        return beginning

    def _take_frame(self, rest: bytes) -> bytes | OversizedFrame | None:
        """Return the frame that `rest` ends; None if it was skipped."""
        with self._lock:
            if self._skipping:
                self._skipping = False
                return None
            line = b"".join([*self._held, rest])
            self._clear()
        return line if len(line) <= self._limit_bytes else OversizedFrame(line[: self._kept_bytes])

    def _store(self, data: bytes) -> None:
        if self._held and len(self._held[-1]) + len(data) <= _CHUNK_BYTES:
            self._held[-1] += data
        else:
            self._held.append(bytearray(data))
        self._held_bytes += len(data)

    def _beginning(self) -> bytes:
        """Return the first stored bytes, at most `_kept_bytes`."""
        found = bytearray()
        for chunk in self._held:
            found += chunk[: self._kept_bytes - len(found)]
            if len(found) == self._kept_bytes:
                break
        return bytes(found)

    def _clear(self) -> None:
        self._held.clear()
        self._held_bytes = 0
