"""The historian: the duty that moves what the scripts have counted into the points of the history, every 10 seconds.

Every worker and every door process runs a historian. The first that asks when a point is due writes it, in one script,
and the others then find that none is due: no lease is needed, and the end of any process loses nothing. If no process
runs, the next point covers the time since the last one.
"""

from shared.history.stored import StoredHistory
from shared.store.store import Store

#: How long after the time at which a point is due the historian asks, in seconds.
_LATE_S = 0.02
#: The shortest time between two calls, so that other scripts run in between.
_PAUSE_S = 0.05


class Historian:
    """Writes points of the history when they are due."""

    name = "historian"

    def __init__(self, store: Store, limit_bytes: int) -> None:
        self._stored = StoredHistory(store.client)
        self._limit_bytes = limit_bytes

    def one_pass(self) -> float:
        """Write a point if one is due. Return the delay until the next pass in seconds. Raises StoreUnavailable."""
        due_in_ms, _, _ = self._stored.write_point(self._limit_bytes)
        return max(_PAUSE_S, due_in_ms / 1_000 + _LATE_S)
