"""DAGOR: an admission level by user, which falls while jobs wait too long and rises while they do not.

Each tenant has a level between 0 and `LEVELS` - 1, a hash of its name. The door admits the tenants up to a cursor. At
the end of each window, the mean time for which the started jobs had waited is compared with the target. Above it, the
cursor moves down to the level at which a twentieth fewer jobs would have been admitted in this window; otherwise it
moves up to the level at which a hundredth more would have been.

`by_load` replaces the hash: the level of a tenant is then its rank by the work that it offered lately, the least
first. The original has no such levels; they are what an operator of this door could choose to protect light tenants.
"""

import hashlib
from collections import Counter

from bench.sim.asks import GENERATED_WEIGHT, Answer, SimJob
from bench.sim.fleet import SimWorker
from bench.sim.memory_queue import MemoryQueue

LEVELS = 128
#: The end of a window: after this time, or after this number of offered jobs.
WINDOW_MS, WINDOW_JOBS = 1_000.0, 2_000
#: The next window admits fewer jobs by this part of the admitted ones, or more by this part of the offered ones.
DECREASE, INCREASE = 0.05, 0.01
#: Part of a tenant's offered work that is kept from one window to the next.
_KEPT = 0.8


class Dagor(MemoryQueue):
    """First in first out, behind admission levels."""

    def __init__(self, name: str, target_ms: float, *, by_load: bool) -> None:
        super().__init__(name)
        self._target_ms, self._by_load = target_ms, by_load
        self._cursor = LEVELS - 1
        self._began_ms = 0.0
        self._offered: Counter[int] = Counter()
        self._admitted = 0
        self._waits_ms: list[float] = []
        self._queued_ms: dict[SimJob, float] = {}
        self._load_wt: Counter[str] = Counter()
        self._ranks: dict[str, int] = {}

    def refusal(self, job: SimJob, now_ms: float) -> Answer | None:
        """Refuse the job if its tenant's level is above the cursor."""
        if now_ms - self._began_ms >= WINDOW_MS or self._offered.total() >= WINDOW_JOBS:
            self._end_window(now_ms)
        level = self._level(job.account)
        self._offered[level] += 1
        self._load_wt[job.account] += job.estimated_prompt + GENERATED_WEIGHT * job.max_tokens
        if level > self._cursor:
            return Answer(taken=False, reason="below_level", hint_ms=1_000)
        self._admitted += 1
        return None

    def on_queued(self, job: SimJob, now_ms: float) -> None:
        """Note when the job began to wait."""
        self._queued_ms[job] = now_ms

    def on_claimed(self, job: SimJob, worker: SimWorker, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Note how long the job has waited."""
        self._waits_ms.append(now_ms - self._queued_ms[job])

    def on_ended(self, job: SimJob, now_ms: float) -> None:
        """Count the wait of a job that was dropped while it waited."""
        queued_ms = self._queued_ms.pop(job, None)
        if job.claimed_ms is None and queued_ms is not None:
            self._waits_ms.append(now_ms - queued_ms)

    def _level(self, tenant: str) -> int:
        if self._by_load:
            return self._ranks.get(tenant, 0)
        return int.from_bytes(hashlib.sha256(tenant.encode()).digest()[:4]) % LEVELS

    def _end_window(self, now_ms: float) -> None:
        """Move the cursor by the offers of the window that ends, and begin a new window."""
        mean_ms = sum(self._waits_ms) / len(self._waits_ms) if self._waits_ms else 0.0
        if mean_ms > self._target_ms:
            expected = (1 - DECREASE) * self._admitted
            while self._cursor > 0 and self._admitted_up_to(self._cursor) > expected:
                self._cursor -= 1
        else:
            expected = self._admitted + INCREASE * self._offered.total()
            while self._cursor < LEVELS - 1 and self._admitted_up_to(self._cursor) < expected:
                self._cursor += 1
        self._began_ms, self._admitted = now_ms, 0
        self._offered.clear()
        self._waits_ms.clear()
        lightest_first = sorted(self._load_wt, key=lambda tenant: (self._load_wt[tenant], tenant))
        self._ranks = {tenant: i * LEVELS // len(lightest_first) for i, tenant in enumerate(lightest_first)}
        for tenant in self._load_wt:
            self._load_wt[tenant] = int(_KEPT * self._load_wt[tenant])

    def _admitted_up_to(self, level: int) -> int:
        return sum(count for other, count in self._offered.items() if other <= level)
