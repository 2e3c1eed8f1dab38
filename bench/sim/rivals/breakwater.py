"""Breakwater: a pool of credits that grows and shrinks with the queueing delay, shared among the clients by demand.

A client (a tenant here) may have as many jobs inflight as it has credits. Every `PERIOD_MS`, the pool grows by a small
step if the job that waits longest has waited less than the target, and shrinks in proportion to the excess otherwise.
The credits are shared max-min fairly by the clients' demand, and spare credits are issued beyond it. A job that has
waited more than twice the target is dropped instead of started.

In the original, a client without credits keeps its requests until it has one. Here it is refused at once, and its
client decides whether to come back.
"""

from collections import Counter

from bench.sim.asks import Answer, SimJob
from bench.sim.memory_queue import MemoryQueue

#: Interval between two adjustments: long enough for a job's prompt to be computed.
PERIOD_MS = 100.0
#: The pool's growth as a part of the number of clients, its decrease per relative excess, and its greatest decrease.
GROWTH, DECREASE, MOST_DECREASE = 0.1, 0.1, 0.5
#: A client's demand is its inflight jobs and the jobs that it offered in about this time.
_DEMAND_KEPT_PER_PERIOD = 0.9
#: A client that has offered nothing for about this long has no demand.
_LEAST_DEMAND = 0.05


class Breakwater(MemoryQueue):
    """First in first out, behind credits."""

    def __init__(self, name: str, target_ms: float, slots: int) -> None:
        super().__init__(name)
        self._target_ms = target_ms
        self._slots = slots
        self._pool = float(slots)
        self._inflight_of: Counter[str] = Counter()
        self._demand: dict[str, float] = {}
        self._credits: dict[str, float] = {}
        self._adjusted_ms = 0.0
        self._queued_ms: dict[SimJob, float] = {}

    def refusal(self, job: SimJob, now_ms: float) -> Answer | None:
        """Refuse the job if its tenant has no credit left."""
        self._demand[job.account] = self._demand.get(job.account, 0.0) + 1
        self._adjust(now_ms)
        # A new client gets one credit when it registers.
        if self._inflight_of[job.account] >= max(1.0, self._credits.get(job.account, 1.0)):
            return Answer(taken=False, reason="no_credit", hint_ms=1_000)
        return None

    def is_expired(self, job: SimJob, now_ms: float) -> bool:
        """Return whether the job waited more than twice the target, or is late."""
        return now_ms - self._queued_ms[job] > 2 * self._target_ms or super().is_expired(job, now_ms)

    def on_queued(self, job: SimJob, now_ms: float) -> None:
        """Count the job as its tenant's, unless it was only queued again."""
        if job not in self._queued_ms:
            self._inflight_of[job.account] += 1
        self._queued_ms[job] = now_ms

    def on_ended(self, job: SimJob, now_ms: float) -> None:
        """Return the job's credit."""
        if self._queued_ms.pop(job, None) is not None:
            self._inflight_of[job.account] -= 1
        self._adjust(now_ms)

    def _adjust(self, now_ms: float) -> None:
        """Adjust the pool once for each period that has passed, and share it anew."""
        periods = int((now_ms - self._adjusted_ms) / PERIOD_MS)
        if not periods:
            return
        self._adjusted_ms += periods * PERIOD_MS
        waiting = self._lists.get("")
        delay_ms = now_ms - self._queued_ms[waiting[0][2]] if waiting and waiting[0][2] in self._queued_ms else 0.0
        for _ in range(periods):
            if delay_ms < self._target_ms:
                self._pool += max(1.0, GROWTH * len(self._demand))
            else:
                excess = (delay_ms - self._target_ms) / self._target_ms
                self._pool *= max(1 - DECREASE * excess, MOST_DECREASE)
        # Credits beyond what is used would only delay the reaction to a burst.
        self._pool = min(max(self._pool, 1.0), 2.0 * max(self.inflight, self._slots) + len(self._demand))
        kept = _DEMAND_KEPT_PER_PERIOD**periods
        self._demand = {name: kept * demand for name, demand in self._demand.items() if kept * demand > _LEAST_DEMAND}
        self._share()

    def _share(self) -> None:
        """Share the pool max-min fairly by demand, and what is left equally beyond it."""
        wanted = {name: demand + self._inflight_of[name] for name, demand in self._demand.items()}
        left, self._credits = self._pool, {}
        for count, name in enumerate(sorted(wanted, key=wanted.__getitem__)):
            self._credits[name] = min(wanted[name], left / (len(wanted) - count))
            left -= self._credits[name]
        for name in self._credits:
            self._credits[name] += max(0.0, left) / len(self._credits)
