"""VTC: the virtual token counter, with the lists and the bound of RR.

Each tenant has a counter of the tokens that it was served. A generated token weighs as much as `GENERATED_WEIGHT`
prompt tokens. A claim serves the tenant with the smallest counter and charges the prompt; each generated token is
charged when it is generated. A tenant that starts to wait is lifted to the smallest counter of the waiting tenants, or
to the counter of the tenant that waited last, so that it gets no credit for being idle.
"""

from collections import Counter
from collections.abc import Iterator

from bench.sim.asks import GENERATED_WEIGHT, SimJob
from bench.sim.fleet import SimWorker
from bench.sim.rivals.round_robin import TenantLists


class VirtualTokenCounter(TenantLists):
    """The tenant that was served the fewest tokens goes first."""

    def __init__(self, name: str, bound: float) -> None:
        super().__init__(name, bound)
        self._served_wt: Counter[str] = Counter()
        #: For each running job, the worker and the generated tokens that were charged so far.
        self._charged: dict[SimJob, tuple[SimWorker, int]] = {}
        self._waiting: set[str] = set()
        self._last_wt = 0

    def turns(self) -> Iterator[str]:
        """Yield the tenants with queued jobs, the least served first."""
        self._charge_generated()
        return iter(sorted(self._waiting, key=lambda tenant: (self._served_wt[tenant], tenant)))

    def on_queued(self, job: SimJob, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Lift a tenant that starts to wait."""
        if job.account in self._waiting:
            return
        self._charge_generated()
        floor_wt = min((self._served_wt[tenant] for tenant in self._waiting), default=self._last_wt)
        self._served_wt[job.account] = max(self._served_wt[job.account], floor_wt)
        self._waiting.add(job.account)

    def on_emptied(self, name: str) -> None:
        """Remember the counter of the last tenant that waited."""
        self._waiting.discard(name)
        self._last_wt = self._served_wt[name]

    def on_claimed(self, job: SimJob, worker: SimWorker, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Charge the prompt."""
        self._served_wt[job.account] += job.prompt
        self._charged[job] = (worker, 0)

    def on_ended(self, job: SimJob, now_ms: float) -> None:  # noqa: ARG002 - a MemoryQueue's names
        """Charge the tokens that were generated since the last charge."""
        charged = self._charged.pop(job, None)
        if charged is not None:
            self._served_wt[job.account] += GENERATED_WEIGHT * max(0, job.computed_answer - charged[1])

    def _charge_generated(self) -> None:
        for job, (worker, charged) in self._charged.items():
            seq = worker.sequences.get(job)
            if seq is None:
                continue
            generated = worker.generated(seq)
            self._served_wt[job.account] += GENERATED_WEIGHT * (generated - charged)
            self._charged[job] = (worker, generated)
