"""Ends the process when jobs run and no token comes: their leases lapse and others take over."""

import os
from collections.abc import Callable

import structlog

from shared.clock import Clock
from workers.exit_codes import ExitCode

log = structlog.get_logger()


class Watchdog:
    """Looks at the engine's count of tokens; needs nothing of the engine's thread but that number."""

    name = "watchdog"

    def __init__(
        self,
        *,
        stall_ms: int,
        tokens: Callable[[], int],
        busy: Callable[[], bool],
        clock: Clock,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._stall_s = stall_ms / 1000
        self._rest_s = min(self._stall_s / 4, 1.0)
        self._tokens = tokens
        self._busy = busy
        self._clock = clock
        self._end = end
        self._seen_tokens = tokens()
        self._seen_s = clock.monotonic()
        self._silent_s = 0.0

    def one_pass(self) -> float:
        """Look once. How long to rest then, in seconds."""
        now_s, tokens = self._clock.monotonic(), self._tokens()
        # Time in which this very thread did not run (the whole process was stopped) proves no stall.
        passed_s = min(now_s - self._seen_s, 2 * self._rest_s)
        if tokens != self._seen_tokens or not self._busy():
            self._silent_s = 0.0
        else:
            self._silent_s += passed_s
        self._seen_s, self._seen_tokens = now_s, tokens
        if self._silent_s >= self._stall_s:
            log.error("worker.stalled", silent_s=round(self._silent_s, 1), exit=int(ExitCode.STALL))
            self._end(ExitCode.STALL)
        return self._rest_s
