"""A stream of bytes → frames, one a line; a frame over the limit is skipped without being held; pure."""

from collections.abc import Iterator
from dataclasses import dataclass

#: What is kept of a frame that is given up: its tag shows there if it stands before the body.
KEPT_BYTES = 1_024


@dataclass(frozen=True)
class TooLong:
    """A frame that went over the limit. Its rest, up to the line's end, is passed over."""

    beginning: bytes


class FrameReader:
    r"""Cuts what comes in into lines, however it was split on its way.

    Holds at most `limit_bytes` between two calls. A line's end is `\n`; the JSON inside does not mind
    a `\r` before it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept_bytes = min(KEPT_BYTES, limit_bytes)
        self._held = bytearray()
        self._skipping = False

    @property
    def partial(self) -> bool:
        """Whether a frame has begun whose end is still to come."""
        return bool(self._held)

    def feed(self, data: bytes) -> Iterator[bytes | TooLong]:
        """The frames that these bytes bring to their end, without their line ends, and what is too long."""
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            if self._skipping:
                self._skipping = False
            else:
                yield self._whole(data[begin:end])
            begin = end + 1
        if self._skipping or begin == len(data):
            return
        if len(self._held) + len(data) - begin > self._limit_bytes:
            yield self._whole(data[begin:])
            self._skipping = True
        else:
            self._held += data[begin:]

    def give_up(self) -> bytes:
        """Pass over the rest of the frame that has begun; its beginning."""
        beginning = bytes(self._held[: self._kept_bytes])
        self._skipping = self._skipping or bool(self._held)
        self._held.clear()
        return beginning

    def _whole(self, piece: bytes) -> bytes | TooLong:
        line = bytes(self._held) + piece
        self._held.clear()
        return line if len(line) <= self._limit_bytes else TooLong(line[: self._kept_bytes])
