"""Undoes the changes that other programs made to RQ's keys; each pass examines a limited number of queues."""

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from shared.store.store import Store

log = structlog.get_logger()

#: Interval between passes, in seconds. More frequent passes are not needed, because most damage is done by hand, and
#: the reaper and the claims skip damaged entries until they are repaired.
PERIOD_S = 3.0
#: One cycle in this many recomputes every sum, even if nothing looks wrong. A cycle examines all queues. If it takes
#: one pass of 3 s, every sum is recomputed about every five minutes. Sums are not recomputed more often, because that
#: costs the store 12 µs for each running job and each queue, and every worker does it.
_THOROUGH_EVERY = 100
#: How many queues one pass examines. If there are more, the next pass continues where this pass stopped.
_QUEUES_A_PASS = 64


class Reconciler:
    """Reconciles some queues in each pass. Several workers may reconcile at once: each defect is repaired only once."""

    name = "reconciler"

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._next = 0
        #: Number of completed cycles over all queues.
        self._cycle = 0

    def one_pass(self) -> float:
        """Reconcile the next _QUEUES_A_PASS queues, and return the delay until the next pass in seconds.

        Raises StoreUnavailable.
        """
        queues = self._store.queues()
        if self._next >= len(queues):
            self._next = 0
            self._cycle += 1
        for tenant, slug in queues[self._next : self._next + _QUEUES_A_PASS]:
            repairs = self._store.reconcile(tenant, slug, thorough=self._cycle % _THOROUGH_EVERY == 0)
            if repairs:
                log.warning("reconciled", tenant=tenant, model=slug, repairs=repairs)
        self._next += _QUEUES_A_PASS
        return PERIOD_S
