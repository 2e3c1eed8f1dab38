"""Undoes the changes that other programs made to RQ's keys and to sums; each pass examines a few queues."""

import secrets

from shared.errors import StoreUnavailable
from shared.log import get_logger
from shared.store.store import Store

log = get_logger()

#: Interval between two rounds, in seconds. A round examines all queues. More frequent rounds are not needed, because
#: most damage is done by hand, and the reaper and the claims skip damaged entries until they are repaired.
PERIOD_S = 3.0
#: About how many queues one pass examines, and the delay until the next pass of the same round, in seconds. A round
#: over 10,000 queues takes about 40 s, plus the time of the calls.
_QUEUES_A_PASS, _PAUSE_S = 64, 0.25
#: How many queues of a pass have their sums recomputed even if nothing looks wrong: in a round of one pass, and in a
#: longer round. Recomputing costs the store 12 µs for each running job. The chosen queues are others in each round.
_THOROUGH, _THOROUGH_LONG_ROUND = 4, 1


class Reconciler:
    """Reconciles some queues in each pass. The workers share each round: one of them is on patrol at a time."""

    name = "reconciler"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asker = secrets.token_hex(8)
        #: The queues whose last reconciliation failed. Each is logged once until it succeeds again.
        self._failing: set[tuple[str, str]] = set()

    def one_pass(self) -> float:
        """Reconcile the next queues, if this worker is on patrol. Return the delay until the next pass in seconds.

        Raises StoreUnavailable.
        """
        step = self._store.patrol(
            self._asker, limit=_QUEUES_A_PASS, rest_ms=int(PERIOD_S * 1000), pause_ms=int(_PAUSE_S * 1000)
        )
        if step.begins_round and (repairs := self._store.recount_workers()):
            log.warning("reconciled.workers", repairs=repairs)
        is_whole_round = step.begins_round and step.rest_ms >= PERIOD_S * 1000
        stride = -(-len(step.queues) // (_THOROUGH if is_whole_round else _THOROUGH_LONG_ROUND))
        for place, (tenant, slug) in enumerate(step.queues):
            self._reconcile(tenant, slug, thorough=(place + step.round) % stride == 0)
        return step.rest_ms / 1000

    def _reconcile(self, tenant: str, slug: str, *, thorough: bool) -> None:
        """Reconcile one queue. A queue that cannot be reconciled is logged and does not hold up the others."""
        try:
            repairs = self._store.reconcile(tenant, slug, thorough=thorough)
        except StoreUnavailable:
            raise
        except Exception:  # whatever another program has done to this queue, the others must be reconciled
            if (tenant, slug) not in self._failing:
                log.exception("reconcile.fault", tenant=tenant, model=slug)
            self._failing.add((tenant, slug))
            return
        self._failing.discard((tenant, slug))
        if repairs:
            log.warning("reconciled", tenant=tenant, model=slug, repairs=repairs)
