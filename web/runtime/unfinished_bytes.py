"""Bound the bytes of all unfinished messages that the connections of one process hold together."""

import threading
from collections import OrderedDict
from itertools import chain
from typing import Protocol

#: An unfinished message of at most this many bytes is dropped only if no other is longer, apart from the one that just
#: grew. The head of a request for a health probe and the gate's frames without a body, such as `auth`, are much
#: shorter.
SMALL_BYTES = 4_096


class Holder(Protocol):
    """A connection that holds an unfinished message."""

    def drop_unfinished(self) -> None:
        """Discard the unfinished message. May be called on any thread and must not block."""
        ...


class UnfinishedBytes:
    """Keeps the sum of all held bytes at or below `max_bytes`.

    If a connection needs bytes that are not left, the unfinished messages that have been held the longest are dropped
    first, and that of the connection itself last. A client that sends its message without pauses therefore succeeds,
    even while others fill the budget with messages that they never finish. May be used on any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        #: The bytes of each unfinished message, the oldest first. All are changed only while `_lock` is held.
        self._small: OrderedDict[Holder, int] = OrderedDict()
        self._large: OrderedDict[Holder, int] = OrderedDict()
        #: The sum of all unfinished messages, and of the bytes that a subclass adds.
        self._total = 0

    @property
    def held_bytes(self) -> int:
        """How many bytes are held in all."""
        return self._total

    def hold(self, holder: Holder, count: int) -> None:
        """Set the length of this connection's unfinished message to `count` bytes; 0 if it has none.

        Drops unfinished messages to make room, which may include the one of this connection.
        """
        with self._lock:
            known = self._large.get(holder) or self._small.get(holder, 0)
            if count < known:
                # Another message has begun since, so the connection loses its place among the oldest.
                self._large.pop(holder, None)
                self._small.pop(holder, None)
            self._total += count - known
            if count > SMALL_BYTES:
                self._small.pop(holder, None)
                self._large[holder] = count
            elif count:
                self._small[holder] = count
            dropped = self._drop(holder) if count > self.max_bytes else self._make_room(holder)
        for victim in dropped:
            victim.drop_unfinished()

    def _make_room(self, spared: Holder | None = None) -> list[Holder]:
        dropped = []
        while self._total > self.max_bytes and (victim := self._first_to_drop(spared)) is not None:
            dropped += self._drop(victim)
        return dropped

    def _first_to_drop(self, spared: Holder | None) -> Holder | None:
        """Return the holder of the message to drop first: `spared` only as the last one, None without a message."""
        holders = chain(self._large, self._small)
        return next((holder for holder in holders if holder is not spared), next(chain(self._large, self._small), None))

    def _drop(self, holder: Holder) -> list[Holder]:
        self._total -= (self._large if holder in self._large else self._small).pop(holder)
        return [holder]
