"""Watches during a run that no worker computes more jobs than it has slots, and that no cell has too many inflight."""

import threading
import time
from collections import Counter
from typing import Any

from shared.errors import StoreUnavailable
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from tests.chaos.stores import RunStores
from tests.chaos.system import SETTINGS
from workers.engine.inbox import max_prefetched

_EVERY_S = 0.2
#: How long a job that the store has forgotten the end of may still count: its lease, and a period of the reaper.
_EXCUSED_S = int(SETTINGS["PENSTOCK_LEASE_MS"]) / 1000 + 3.0
#: Reads in one step how many jobs are inflight, and the worker of each job that computes.
_COMPUTING = """
local workers = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local job = redis.call('HMGET', KEYS[2] .. id, 'penstock_state', 'penstock_worker', 'penstock_paused_since_ms')
  if job[1] == 'running' and job[2] and not job[3] then
    workers[#workers + 1] = job[2]
  end
end
return { redis.call('ZCARD', KEYS[3]), workers }
"""


class SlotWatch:
    """Counts the inflight jobs of each cell and the computing jobs of each worker again and again, in a thread."""

    def __init__(self, stores: RunStores, slots: int, max_inflight: int) -> None:
        self._stores, self._slots, self._max_inflight = stores, slots, max_inflight
        #: In the store, a job that is claimed or resumed for a slot which becomes free soon computes beside the job
        #: that still has the slot. Whether a job was paused at that time cannot be seen later: it may have ended since.
        self._allowed = slots + max_prefetched(slots, paused=1)
        #: (time, worker, its computing jobs), whenever they were more than allowed.
        self._found: list[tuple[float, str, int]] = []
        #: (cell, its inflight jobs), whenever they were more than the bound.
        self._overfull: list[tuple[str, int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[str]:
        """Stop, and return a sentence about each worker and cell that had too many jobs.

        Those of a worker are excused if the store had lost writes.
        """
        self._stopped.set()
        self._thread.join(10)
        losses = self._stores.losses
        found = [
            (worker, computing)
            for at, worker, computing in self._found
            if not any(loss.covers(at - _EXCUSED_S, at) for loss in losses)
        ]
        overfull = [f"cell {cell} had {most} inflight jobs" for cell, most in dict(self._overfull).items()]
        return overfull + [
            f"{worker} has {self._slots} slots and computed {most} jobs" for worker, most in dict(found).items()
        ]

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            for cell, client in self._stores.clients.items():
                self._look(cell, client)

    def _look(self, cell: str, client: Any) -> None:
        try:
            with store_faults(client):
                inflight, workers = client.eval(_COMPUTING, 3, keys.leases(), keys.rq_job(""), keys.inflight())
        except StoreUnavailable:
            return
        if inflight > self._max_inflight:
            self._overfull.append((cell, inflight))
        counts = Counter(text(raw) for raw in workers)
        self._found += [(time.monotonic(), name, n) for name, n in counts.items() if n > self._allowed]
