"""Decides when a job's new text is sent to the store: the first text at once, later text at most once every 50 ms.

Later text is sent on ticks that all jobs of a worker share, so that one call to the store carries the text of all of
them. If a call was not answered, its chunks are sent again unchanged, so that the store can recognize the repeat by its
text and token count.
"""

import math
from dataclasses import dataclass, field

#: Length of a tick: too short for a reader to notice, and long enough to need only 20 calls a second for all jobs.
INTERVAL_S = 0.05


@dataclass(frozen=True)
class Chunk:
    """New text of one job, and the number of answer tokens that the job had generated when this text ended."""

    key: str
    text: str
    completion_tokens: int


@dataclass
class _PendingText:
    """Text of one job that has not been sent yet. Only the thread that runs the delivery's passes uses it."""

    #: Number of the first tick in which more text may be sent.
    earliest_tick: int = 0
    first_sent: bool = False
    parts: list[str] = field(default_factory=list)
    completion_tokens: int = 0


class TextPacing:
    """The text that waits to be appended to the jobs' event streams, by job key."""

    def __init__(self) -> None:
        self._pending: dict[str, _PendingText] = {}
        #: Chunks that `due` has returned but `sent` has not confirmed yet.
        self._unconfirmed: list[Chunk] = []

    def add(self, key: str, text: str, completion_tokens: int) -> None:
        """Add new text of a job."""
        pending = self._pending.setdefault(key, _PendingText())
        pending.parts.append(text)
        pending.completion_tokens = completion_tokens

    def due(self, now_s: float, ending: set[str]) -> list[Chunk]:
        """Return the chunks to send now. Text of the jobs in `ending` is due at once, because it is their last.

        Until `sent` is called, every call returns the same chunks.
        """
        if not self._unconfirmed:
            tick = math.floor(now_s / INTERVAL_S)
            for key, pending in self._pending.items():
                if pending.parts and (tick >= pending.earliest_tick or key in ending):
                    self._unconfirmed.append(Chunk(key, "".join(pending.parts), pending.completion_tokens))
                    pending.parts.clear()
        return list(self._unconfirmed)

    def sent(self, now_s: float) -> None:
        """Confirm that the store has received the chunks that `due` returned last."""
        tick = math.floor(now_s / INTERVAL_S)
        for chunk in self._unconfirmed:
            pending = self._pending.get(chunk.key)
            if pending is not None:
                # A job's first text is sent between two ticks. The next tick is less than an interval away, so the
                # job's second text waits for the tick after the next.
                pending.earliest_tick = tick + (1 if pending.first_sent else 2)
                pending.first_sent = True
        self._unconfirmed.clear()

    def forget(self, key: str) -> None:
        """Discard the text of a job that has ended or that this worker no longer holds."""
        self._pending.pop(key, None)
        self._unconfirmed = [chunk for chunk in self._unconfirmed if chunk.key != key]

    @property
    def has_unsent(self) -> bool:
        """Whether some text has not been sent, or was sent but has not been confirmed."""
        return bool(self._unconfirmed) or any(pending.parts for pending in self._pending.values())

    def next_tick_s(self, now_s: float) -> float | None:
        """Return the clock time at which to call `due` again, or None if no job has produced text."""
        if self._unconfirmed:
            return now_s
        return (math.floor(now_s / INTERVAL_S) + 1) * INTERVAL_S if self._pending else None
