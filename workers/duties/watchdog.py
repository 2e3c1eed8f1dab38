"""Ends the process if jobs are running but no token is computed; their leases expire, and other workers take over."""

import os
from collections.abc import Callable

from shared.clock import Clock
from shared.log import get_logger
from workers.exit_codes import ExitCode

log = get_logger()


class Watchdog:
    """Watches a number that changes while the engine works. It needs nothing else from the engine's thread."""

    name = "watchdog"

    def __init__(
        self,
        *,
        stall_ms: int,
        progress: Callable[[], int],
        busy: Callable[[], bool],
        clock: Clock,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._stall_s = stall_ms / 1000
        self._interval_s = min(self._stall_s / 4, 1.0)
        self._progress = progress
        self._busy = busy
        self._clock = clock
        self._end = end
        self._last_progress = progress()
        self._last_s = clock.monotonic()
        self._silent_s = 0.0

    def one_pass(self) -> float:
        """Check for progress and end the process on a stall. Return the delay until the next pass in seconds."""
        now_s, progress = self._clock.monotonic(), self._progress()
        # A long gap between passes means that this thread did not run either, for example because the process was
        # suspended. Therefore at most two intervals of the gap are counted.
        passed_s = min(now_s - self._last_s, 2 * self._interval_s)
        if progress != self._last_progress or not self._busy():
            self._silent_s = 0.0
        else:
            self._silent_s += passed_s
        self._last_s, self._last_progress = now_s, progress
        if self._silent_s >= self._stall_s:
            log.error("worker.stalled", silent_s=round(self._silent_s, 1), exit=int(ExitCode.STALL))
            self._end(ExitCode.STALL)
        return self._interval_s
