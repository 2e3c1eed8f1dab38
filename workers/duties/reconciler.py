"""The duty of reconciling: what foreign hands did to RQ's keys is put right within one period."""

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from shared.store.store import Store

log = structlog.get_logger()

#: A pass every few seconds: hands are slow, and the reaper and the claims step over what is spoiled meanwhile.
PERIOD_S = 3.0
#: Every so many rounds, at 3 s some five minutes, sums are counted anew although nothing speaks against them.
#: Seldom, because it takes the store 12 µs for each running job and queue, and every worker does it.
_THOROUGH_EVERY = 100
#: Queues looked at in one pass; with more of them the next pass goes on where this one ended.
_QUEUES_A_PASS = 64


class Reconciler:
    """One pass after another, by whoever runs it; two at once repair each thing once."""

    name = "reconciler"

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._next = 0
        self._job_loop = 0

    def one_pass(self) -> float:
        """Reconcile the next queues in turn. How long to rest then, in seconds. Raises StoreUnavailable."""
        queues = self._store.queues()
        if self._next >= len(queues):
            self._next = 0
            self._job_loop += 1
        for tenant, slug in queues[self._next : self._next + _QUEUES_A_PASS]:
            repairs = self._store.reconcile(tenant, slug, thorough=self._job_loop % _THOROUGH_EVERY == 0)
            if repairs:
                log.warning("reconciled", tenant=tenant, model=slug, repairs=repairs)
        self._next += _QUEUES_A_PASS
        return PERIOD_S
