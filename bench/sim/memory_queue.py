"""A queue in memory, from which the baselines and the rivals are made: lists, inflight jobs, late jobs, lost workers.

The plain queue is one list, first in first out, without a bound. A subclass changes one or more of its four decisions:
whether to admit a job (`refusal`), to which list it belongs (`list_of`), its place in the list (`rank`), and which list
goes first (`turns`).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several

from bench.sim.asks import TAKEN, Answer, SimJob
from bench.sim.estimates import Estimates
from bench.sim.fleet import Sequence, SimWorker
from bench.sim.system import Grant

#: The jobs of a worker whose last heartbeat is older than this are queued again: the default of PENSTOCK_LEASE_MS.
LEASE_MS = 15_000.0


class MemoryQueue:
    """One queue for one model, without a bound."""

    #: It never pauses a running job.
    preempts = False
    #: Whether a job whose deadline has passed is dropped when it reaches the head of its list.
    drops_late = True
    #: Whether a job at the head is dropped as well if even a short answer could not be ready in time.
    drops_hopeless = False
    #: Whether a list whose head is dropped has had its turn.
    drop_ends_turn = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.inflight = 0
        self.waiting_by_list: Counter[str] = Counter()
        self.estimates = Estimates()
        self._lists: dict[str, list[tuple[float, int, SimJob]]] = {}
        #: The worker that runs each claimed job, by its name and its number of crashes.
        self._holder: dict[SimJob, tuple[str, int]] = {}
        self._last_seen_ms: dict[str, tuple[int, float]] = {}

    # The decisions that a subclass changes.

    def refusal(self, job: SimJob, now_ms: float) -> Answer | None:  # noqa: ARG002 - for subclasses
        """Return the refusal of an offered job, or None to admit it."""
        return None

    def list_of(self, job: SimJob) -> str:  # noqa: ARG002 - for subclasses
        """Return the name of the list to which the job belongs."""
        return ""

    def rank(self, job: SimJob, now_ms: float) -> float:  # noqa: ARG002 - for subclasses
        """Return the number that orders the job in its list. The first in first out order is the default."""
        return job.number

    def turns(self) -> Iterator[str]:
        """Yield the names of the lists in the order in which they may take the free slot."""
        yield ""

    def is_expired(self, job: SimJob, now_ms: float) -> bool:
        """Return whether a job at the head of its list is dropped instead of started."""
        if not self.drops_late:
            return False
        return now_ms >= job.deadline_at_ms or (
            self.drops_hopeless and now_ms + self.estimates.short_ms(job) > job.deadline_at_ms
        )

    def on_queued(self, job: SimJob, now_ms: float) -> None:
        """Called when a job is added to a list."""

    def on_emptied(self, name: str) -> None:
        """Called when the last job of a list has left it."""

    def on_claimed(self, job: SimJob, worker: SimWorker, now_ms: float) -> None:
        """Called when a job gets a slot."""

    def on_ended(self, job: SimJob, now_ms: float) -> None:
        """Called when a job leaves the system: it was answered, dropped or canceled."""

    # The System protocol.

    def offer(self, job: SimJob, now_ms: float, then: Callable[[Answer], None]) -> None:
        """Admit the job unless `refusal` refuses it."""
        refused = self.refusal(job, now_ms)
        if refused is None:
            self.inflight += 1
            self._queue(job, now_ms)
        then(refused or TAKEN)

    def flush_offers(self) -> None:
        """Do nothing: every offer is answered at once."""

    def take_ring(self, worker: SimWorker) -> bool:  # noqa: ARG002 - every queue has this method
        """Return False: a full worker is never woken."""
        return False

    def claim(self, worker: SimWorker, now_ms: float) -> list[Grant]:
        """Return the next jobs for the worker's free slots."""
        grants: list[Grant] = []
        cells = worker.cells_free
        while len(grants) < worker.room:
            job = self._next(cells, now_ms)
            if job is None:
                break
            cells -= job.prompt + job.max_tokens
            self._holder[job] = (worker.name, worker.life)
            self.on_claimed(job, worker, now_ms)
            grants.append(Grant(job, "", job.deadline_at_ms))
        return grants

    def settle(
        self, worker: SimWorker, seq: Sequence, outcome: str, now_ms: float, then: Callable[[str], None]
    ) -> None:
        """Accept the outcome that the engine reports."""
        self._holder.pop(seq.job, None)
        self.estimates.record(worker.usage(seq, now_ms), outcome, seq.job.tenant)
        self._leave_system(seq.job, now_ms)
        then(outcome)

    def leave(self, job: SimJob, now_ms: float) -> bool:
        """Cancel a queued job if this queue knows deadlines. Return whether a worker must be notified."""
        if job in self._holder:
            return self.drops_late
        if job.admitted_ms is not None and not job.outcome and self.drops_late:
            self._end_queued(job, "canceled", now_ms)
        return False

    def heartbeat(self, worker: SimWorker, now_ms: float) -> Several[SimJob]:
        """Note that the worker lives. A worker that was restarted has lost the jobs of its earlier life."""
        life, _ = self._last_seen_ms.get(worker.name, (worker.life, now_ms))
        self._last_seen_ms[worker.name] = (worker.life, now_ms)
        if life != worker.life:
            self._requeue_of(worker.name, now_ms)
        return ()

    def reap(self, now_ms: float) -> bool:
        """Queue the jobs of silent workers again. Return whether there were any."""
        silent = [name for name, (_, seen_ms) in self._last_seen_ms.items() if now_ms - seen_ms > LEASE_MS]
        return sum(self._requeue_of(name, now_ms) for name in silent) > 0

    def has_waiting(self, model: str) -> bool:  # noqa: ARG002 - a System's names
        """Return whether any job is queued."""
        return any(self._lists.values())

    def close(self, jobs: Several[SimJob]) -> None:
        """Do nothing: jobs that are still queued have no outcome."""

    # Lists.

    def _queue(self, job: SimJob, now_ms: float) -> None:
        name = self.list_of(job)
        self.waiting_by_list[name] += 1
        heapq.heappush(self._lists.setdefault(name, []), (self.rank(job, now_ms), job.number, job))
        self.on_queued(job, now_ms)

    def _next(self, cells: int, now_ms: float) -> SimJob | None:
        """Remove and return the next job that fits, and end the heads that have expired."""
        dropped_any = True
        while dropped_any:
            dropped_any = False
            for name in self.turns():
                waiting = self._lists.get(name, [])
                dropped = self._drop_heads(waiting, now_ms)
                dropped_any = dropped_any or dropped
                found = None
                if not (dropped and self.drop_ends_turn) and waiting:
                    found = self._take_head(name, cells)
                if name in self._lists and not waiting:
                    del self._lists[name]
                    self.on_emptied(name)
                if found is not None:
                    return found
        return None

    def _drop_heads(self, waiting: list[tuple[float, int, SimJob]], now_ms: float) -> bool:
        """Remove the heads of a list that are canceled or expired. Return whether any job expired."""
        dropped = False
        while waiting and (waiting[0][2].outcome or self.is_expired(waiting[0][2], now_ms)):
            job = heapq.heappop(waiting)[2]
            if not job.outcome:
                self._end_queued(job, "expired", now_ms)
                dropped = True
                if self.drop_ends_turn:
                    break
        return dropped

    def _take_head(self, name: str, cells: int) -> SimJob | None:
        head = self._lists[name][0][2]
        if head.prompt + head.max_tokens > cells:
            return None
        heapq.heappop(self._lists[name])
        self.waiting_by_list[name] -= 1
        return head

    def _end_queued(self, job: SimJob, outcome: str, now_ms: float) -> None:
        job.outcome, job.ended_ms = outcome, now_ms
        self.waiting_by_list[self.list_of(job)] -= 1
        self._leave_system(job, now_ms)

    def _leave_system(self, job: SimJob, now_ms: float) -> None:
        self.inflight -= 1
        self.on_ended(job, now_ms)

    def _requeue_of(self, worker: str, now_ms: float) -> int:
        """Queue the jobs again that the worker has lost. Return their number."""
        current_life, _ = self._last_seen_ms[worker]
        lost = [
            job
            for job, (name, life) in self._holder.items()
            if name == worker and (life != current_life or now_ms - self._last_seen_ms[worker][1] > LEASE_MS)
        ]
        for job in lost:
            del self._holder[job]
            self._queue(job, now_ms)
        return len(lost)
