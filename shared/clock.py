"""Clocks for measuring durations; code receives its clock as a parameter, so that tests can control time.

A process never sends its machine's wall-clock time to another process. It passes deadlines to the store as milliseconds
from now. Only the scripts convert deadlines to points in time, with a clock of their own that never goes back
(shared/lua/lib/base/clock.lua). Tests and virtual-time benchmarks control that clock with the key `penstock:clock`.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The interface for code that measures durations."""

    def monotonic(self) -> float:
        """Return the number of seconds since a fixed but arbitrary starting point; this number never decreases."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that advances only when `advance` is called; for tests and virtual time."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s

    def monotonic(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Advance the clock by `seconds`, which must be at least 0. Raises ValueError otherwise."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: advance({seconds})")
        self._now_s += seconds
