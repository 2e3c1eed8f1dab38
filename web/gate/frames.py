"""Split a byte stream into frames, one per line, without I/O; skip frames that are too long without storing them."""

from collections.abc import Iterator
from dataclasses import dataclass

#: How many bytes of a discarded frame are kept. They are enough to find the frame's `ref` if it precedes the body.
KEPT_BYTES = 1_024


@dataclass(frozen=True)
class OversizedFrame:
    """The first bytes of a frame that exceeds the size limit. The rest of the frame is skipped."""

    beginning: bytes


class FrameReader:
    r"""Splits incoming bytes into lines, however the network has divided these bytes.

    At most `limit_bytes` are stored between two calls of `feed`. A line ends with `\n`. A `\r` before the `\n` is kept,
    because the JSON parser ignores it as whitespace.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept_bytes = min(KEPT_BYTES, limit_bytes)
        self._held = bytearray()
        self._skipping = False

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
            if self._skipping:
                self._skipping = False
            else:
                yield self._take_frame(data[begin:end])
            begin = end + 1
        if self._skipping or begin == len(data):
            return
        if len(self._held) + len(data) - begin > self._limit_bytes:
            yield self._take_frame(data[begin:])
            self._skipping = True
        else:
            self._held += data[begin:]

    def discard_partial(self) -> bytes:
        """Drop the incomplete frame and return its first bytes. The rest of the frame is skipped when it arrives."""
        beginning = bytes(self._held[: self._kept_bytes])
        self._skipping = self._skipping or bool(self._held)
        self._held.clear()
        return beginning

    def _take_frame(self, rest: bytes) -> bytes | OversizedFrame:
        line = bytes(self._held) + rest
        self._held.clear()
        return line if len(line) <= self._limit_bytes else OversizedFrame(line[: self._kept_bytes])
