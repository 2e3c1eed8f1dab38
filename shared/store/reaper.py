"""The duty of reaping: every worker and every ingress ends what is late and takes back lapsed leases.

It wakes at the earliest moment at which something is due. A job admitted meanwhile may be due before
that moment, so it never rests longer than 250 ms: that is the most by which an end can be late.
"""

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from shared.store.store import Store

log = structlog.get_logger()

#: The longest and the shortest rest. The shortest keeps several reapers that wait for one moment from
#: asking the store without pause while that moment comes.
LONGEST_REST_S, SHORTEST_REST_S = 0.25, 0.02

#: Calls in one pass. 64 jobs of each kind a call: more than any store holds that is due at once.
_MOST_CALLS = 1000


class Reaper:
    """One pass after another, by whoever runs it; two at once handle each job once."""

    name = "reaper"

    def __init__(self, store: "Store") -> None:
        self._store = store

    def one_pass(self) -> float:
        """Reap until nothing is due. How long to rest then, in seconds. Raises StoreUnavailable."""
        for _ in range(_MOST_CALLS):
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
            return LONGEST_REST_S
        return min(LONGEST_REST_S, max(SHORTEST_REST_S, reaped.due_in_ms / 1000))
