"""The clock of the store's machine, which a test sets forward and back; real time does not pass in it."""

from collections.abc import Callable

from shared.store import keys
from shared.store.store import Store
from tests.support.builders import heartbeat

START_MS, MINUTE_MS, HOUR_MS = 1_800_000_000_000, 60_000, 3_600_000
#: By how much a duration may differ from the one that was asked for.
EXACT_MS = 1_000


class MachineClock:
    """Replaces TIME, before the scripts compare it with the mark."""

    def __init__(self, store: Store) -> None:
        self._store, self.now_ms = store, START_MS
        self.jump(0)

    def jump(self, ms: int) -> None:
        """Set the clock forward or back, and let the next script notice it."""
        self.set(ms)
        self._store.reap()

    def set(self, ms: int) -> None:
        """Set the clock forward or back; no script runs."""
        self.now_ms += ms
        self._store.client.set(keys.clock(), f"@{self.now_ms}")

    def pass_ms(self, ms: int, *, beating: str = "other", step_ms: int = 250) -> None:
        """Let time pass while a reaper runs and the worker `beating` sends heartbeats."""
        for passed_ms in range(0, ms, step_ms):
            self.set(min(step_ms, ms - passed_ms))
            heartbeat(self._store, beating)
            self._store.reap()

    def waited_ms(self, has_happened: Callable[[], bool], *, at_most_ms: int, beating: str = "other") -> int:
        """Let time pass until `has_happened()`; return how much time passed."""
        for passed_ms in range(0, at_most_ms, 250):
            if has_happened():
                return passed_ms
            self.pass_ms(250, beating=beating)
        raise AssertionError(f"nothing happened in {at_most_ms} ms")

    @property
    def ahead_ms(self) -> int:
        """By how much the scripts' time is ahead of this clock."""
        return self._store.snapshot().now_ms - self.now_ms
