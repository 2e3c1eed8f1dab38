"""Time as a parameter: monotonic for what is measured; what is stored is the store's own TIME.

Nothing that crosses a process is wall time of a machine. Deadlines travel as relative milliseconds,
and only scripts turn them into moments, by the store's TIME (plus `penstock:clock`, a shift that
only tests and virtual-time benchmarks set).
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What code that measures needs of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def monotonic(self) -> float:
        """Seconds since boot or so."""
        return time.monotonic()


class HeldClock:
    """A clock that moves only when told; for tests and virtual time."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s

    def monotonic(self) -> float:
        """The held moment, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move the held moment forward by `seconds` (>= 0)."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: advance({seconds})")
        self._now_s += seconds
