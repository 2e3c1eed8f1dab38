"""The bytes that connections without a valid key hold together: one budget for each gate process."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

#: An unfinished frame of at most this many bytes is dropped only if there is no longer one. Frames that have no body,
#: such as `auth`, are much shorter, so a client with a key can always send it.
SMALL_FRAME_BYTES = 4_096
#: How many of the longer frames may be parsed at a time. Parsing takes about three times the memory of the frame, until
#: the store has answered whether the frame's key is valid.
_MAX_PARSING = 4


class Holder(Protocol):
    """A connection that holds an unfinished frame."""

    def drop_unfinished(self) -> None:
        """Discard the unfinished frame. May be called on any thread and must not block."""
        ...


class StrangerBudget:
    """Keeps the sum of all held bytes at or below `max_bytes`.

    If a connection needs bytes that are not left, the unfinished frames that have been held the longest are dropped
    first. A client that sends its frame without pauses therefore succeeds, even while others fill the budget with
    frames that they never finish. May be used on any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        #: The bytes of each unfinished frame, the oldest first. All are changed only while `_lock` is held.
        self._small: OrderedDict[Holder, int] = OrderedDict()
        self._large: OrderedDict[Holder, int] = OrderedDict()
        #: The sum of all unfinished frames, and of the complete frames whose key is being checked.
        self._total = 0
        self._parsing = threading.BoundedSemaphore(_MAX_PARSING)

    @property
    def held_bytes(self) -> int:
        """How many bytes are held in all."""
        return self._total

    def hold(self, holder: Holder, count: int) -> None:
        """Set the length of this connection's unfinished frame to `count` bytes; 0 if it has none.

        Drops unfinished frames to make room, which may include the one of this connection.
        """
        with self._lock:
            known = self._large.get(holder) or self._small.get(holder, 0)
            if count < known:
                # Another frame has begun since, so the connection loses its place among the oldest.
                self._large.pop(holder, None)
                self._small.pop(holder, None)
            self._total += count - known
            if count > SMALL_FRAME_BYTES:
                self._small.pop(holder, None)
                self._large[holder] = count
            elif count:
                self._small[holder] = count
            dropped = self._drop(holder) if count > self._max_bytes else self._make_room()
        for victim in dropped:
            victim.drop_unfinished()

    @contextmanager
    def parsing(self, count: int) -> Iterator[bool]:
        """Hold the bytes of a complete frame inside the `with` block, one of few such blocks at a time.

        The block's value is False, and nothing is held, if there is no room for the frame.
        """
        if count <= SMALL_FRAME_BYTES:
            yield True
            return
        with self._lock:
            self._total += count
            dropped = self._make_room()
            has_room = self._total <= self._max_bytes
            if not has_room:
                self._total -= count
        for victim in dropped:
            victim.drop_unfinished()
        if not has_room:
            yield False
            return
        try:
            with self._parsing:
                yield True
        finally:
            with self._lock:
                self._total -= count

    def _make_room(self) -> list[Holder]:
        dropped = []
        while self._total > self._max_bytes and (self._large or self._small):
            dropped += self._drop(next(iter(self._large or self._small)))
        return dropped

    def _drop(self, holder: Holder) -> list[Holder]:
        self._total -= (self._large if holder in self._large else self._small).pop(holder)
        return [holder]
