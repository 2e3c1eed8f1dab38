"""The sweeper: the duty that finds inflight jobs which no other duty would ever end, and puts them back.

Every worker and every door process runs a sweeper, so that jobs end even while no worker is alive. One process at a
time has the turn to sweep; if it stops, another one gets the turn after 10 s.
"""

import secrets

from shared.log import get_logger
from shared.store.replies import SweepSource, Swept
from shared.store.store import Store

log = get_logger()

#: Interval between passes, in seconds. Only other programs make a sweep necessary, so more frequent ones are not.
PERIOD_S = 3.0
#: How many calls one pass makes. A call examines 64 jobs and takes the store a few milliseconds. With more inflight
#: jobs than one pass examines, the next pass continues where this pass stopped.
_CALLS_A_PASS = 16


class Sweeper:
    """Sweeps the inflight jobs in passes, oldest first, while it has the turn."""

    name = "sweeper"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asker = secrets.token_hex(8)
        #: The rank at which the next pass continues.
        self._start = 0
        #: The active sets of the jobs examined since the last end of the set.
        self._active_sets: set[str] = set()

    def one_pass(self) -> float:
        """Sweep the next jobs if this process has the turn. Return the delay until the next pass in seconds.

        Raises StoreUnavailable.
        """
        if repairs := self._sweep_inflight(_CALLS_A_PASS, self._asker):
            log.warning("swept", repairs=repairs)
        return PERIOD_S

    def sweep_all(self) -> int:
        """Sweep all jobs and recompute the sums of all pools at once, out of turn. Return the number of repairs."""
        self._start, repairs = 0, 0
        while True:
            repairs += self._sweep_inflight(_CALLS_A_PASS, "")
            if self._start == 0:
                return repairs + self._sweep_set("deadlines") + self._sweep_set("leases")

    def _sweep_inflight(self, calls: int, asker: str) -> int:
        """Make up to `calls` calls, and recompute the pools at the end of the set. Return the repairs."""
        repairs = 0
        for _ in range(calls):
            swept = self._sweep("inflight", self._start, asker)
            repairs += swept.repairs
            self._start = swept.next_start or 0
            if swept.next_start is None:
                if not swept.sets_agree:
                    repairs += self._sweep_set("deadlines") + self._sweep_set("leases")
                # A pool's sums are computed from those of its groups.
                for name in sorted(self._active_sets, key=lambda name: "@" not in name):
                    repairs += self._store.rebook(name)
                self._active_sets.clear()
                break
        return repairs

    def _sweep_set(self, source: SweepSource) -> int:
        """Sweep one of the sets from which the set of inflight jobs can be rebuilt, and return the repairs."""
        repairs, start = 0, 0
        for _ in range(_CALLS_A_PASS):
            swept = self._sweep(source, start, "")
            repairs += swept.repairs
            if swept.next_start is None:
                break
            start = swept.next_start
        return repairs

    def _sweep(self, source: SweepSource, start: int, asker: str) -> Swept:
        swept = self._store.sweep(source, start, asker=asker)
        self._active_sets.update(swept.active_sets)
        for notice in swept.notices:
            kind, _, what = notice.partition(" ")
            log.error("store.spoiled", kind=kind, what=what)
        return swept
