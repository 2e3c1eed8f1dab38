"""The reaper: the duty that ends jobs whose deadline has passed and takes back jobs whose lease has ended.

Every worker and every door process runs a reaper. Each pass is scheduled for the time at which the next deadline passes
or the next lease ends. A job that is admitted before that time may have an earlier deadline, so two passes are never
more than 250 ms apart. A job therefore ends at most 250 ms late.
"""

from shared.log import get_logger
from shared.store.store import Store

log = get_logger()

#: The longest and the shortest pause between two passes, in seconds. A reaper pauses until the next job is due. The
#: shortest pause prevents it from calling the store again and again in the last few milliseconds before that.
MAX_REST_S, MIN_REST_S = 0.25, 0.02

#: Bound on the number of calls in one pass. One call handles up to 64 jobs of each kind, so this bound allows more jobs
#: than are ever due at the same time.
_MAX_CALLS = 1000


class Reaper:
    """Calls the reap script in passes. Several reapers can run at the same time: each due job is handled only once."""

    name = "reaper"

    def __init__(self, store: Store) -> None:
        self._store = store

    def one_pass(self) -> float:
        """Reap until no job is due, and return the number of seconds until the next pass. Raises StoreUnavailable."""
        for _ in range(_MAX_CALLS):
            reaped = self._store.reap()
            if reaped.moved == 0:
                break
            log.info(
                "reaped",
                expired=reaped.expired,
                requeued=reaped.requeued,
                failed=reaped.failed,
                canceled=reaped.canceled,
            )
        if reaped.due_in_ms is None:
            return MAX_REST_S
        return min(MAX_REST_S, max(MIN_REST_S, reaped.due_in_ms / 1000))
