"""The bytes that connections without a valid key hold together: one budget for each gate process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from web.runtime.unfinished_bytes import SMALL_BYTES, UnfinishedBytes

#: How many of the longer frames may be parsed at a time. Parsing takes about three times the memory of the frame, until
#: the store has answered whether the frame's key is valid.
_MAX_PARSING = 4


class StrangerBudget(UnfinishedBytes):
    """Holds the unfinished frames, and the complete frames whose key is being checked. May be used on any thread."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._parsing = threading.BoundedSemaphore(_MAX_PARSING)

    @contextmanager
    def parsing(self, count: int) -> Iterator[bool]:
        """Hold the bytes of a complete frame inside the `with` block, one of few such blocks at a time.

        The block's value is False, and nothing is held, if there is no room for the frame.
        """
        if count <= SMALL_BYTES:
            yield True
            return
        with self._lock:
            self._total += count
            dropped = self._make_room()
            has_room = self._total <= self.max_bytes
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
