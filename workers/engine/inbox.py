"""The interface between other threads and the engine's thread: submitted jobs, cancels and reserved capacity."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from shared.jobs.job import ClaimRef
from workers.engine.backend import Prepared
from workers.engine.events import FreeCapacity

#: One job may be prefetched for every 8 slots. A prefetched job is claimed before the slot's previous job is settled.
#: At that time, the service of the previous job's tenant does not yet include the real cost of that job, so the turns
#: can be in the wrong order by that cost. This is why only a few jobs are prefetched.
_SLOTS_PER_PREFETCH = 8


@dataclass(frozen=True)
class JobRequest:
    """The worker's request about a job that it has submitted.

    `cancel` and `drop` end the job; a dropped job has lost its lease, so the worker will not settle it. A job that is
    paused gives up its slot for others, and keeps its answer so far, until it is resumed.
    """

    kind: Literal["cancel", "drop", "pause", "resume"]
    key: ClaimRef
    #: Time of the request on the engine's clock; 0 for a pause and a resume.
    requested_s: float = 0.0


#: The worker's request that the engine return the jobs that have no slot, paused ones included.
RECALL: Final = "recall"

Item = Prepared | JobRequest | Literal["recall"]


def max_prefetched(slots: int, paused: int) -> int:
    """Return how many jobs an engine may get while no slot is free for them yet.

    `slots` is the engine's number of slots. If `paused` jobs wait for a slot again, one job may always be prefetched:
    with preemption, the service of the slot's tenant is known up to the claim. Without it, an engine with few slots
    would lose a step whenever one of many short jobs ends.
    """
    return max(slots // _SLOTS_PER_PREFETCH, min(1, paused))


class Inbox:
    """The state that other threads share with the engine's thread, under one lock.

    All methods may be called from any thread. A slot and cells are reserved for a job when it is submitted, and freed
    when it has ended. So `free_capacity` accounts for every submitted job, including those that the engine's thread
    has not taken in yet.
    """

    def __init__(self, slots: int, cells: int) -> None:
        self._slots, self._cells = slots, cells
        #: Protects all attributes below. It is notified of every change that may end a `wait`.
        self._changed = threading.Condition()
        self._pending: deque[Item] = deque()
        #: Keys of the jobs that are known to end soon. Only the engine's thread changes this set.
        self._ending_soon: set[ClaimRef] = set()
        #: Key of each submitted job that is not paused and has not ended → number of cells reserved for the job.
        self._reserved: dict[ClaimRef, int] = {}
        #: Key of each paused job → number of cells that it needs to resume.
        self._paused: dict[ClaimRef, int] = {}
        self._reserved_cells = 0

    def put(self, job: Prepared) -> None:
        """Submit a job. Raises ValueError if the engine already has a job with this key."""
        key = job.spec.key
        with self._changed:
            if key in self._reserved or key in self._paused:
                raise ValueError(f"the engine already has a job with the key {key!r}")
            self._reserved[key] = job.cells
            self._reserved_cells += job.cells
            self._pending.append(job)
            self._changed.notify()

    def cancel(self, key: ClaimRef, *, drop: bool, requested_s: float) -> None:
        """Ask the engine to end a job. Does nothing if the engine has no job with this key."""
        with self._changed:
            if key in self._reserved or key in self._paused:
                self._pending.append(JobRequest("drop" if drop else "cancel", key, requested_s))
                self._changed.notify()

    def note_ended(self, key: ClaimRef) -> None:
        """Free the slot and the cells that were reserved for a job, which has now ended."""
        with self._changed:
            self._ending_soon.discard(key)
            if self._paused.pop(key, None) is None:
                self._reserved_cells -= self._reserved.pop(key)

    def pause(self, key: ClaimRef) -> bool:
        """Ask the engine to pause a job, and free its reservation. Return False if the job has ended or is paused.

        Jobs that are submitted later find the slot free, because the engine handles requests in their order.
        """
        with self._changed:
            cells = self._reserved.pop(key, None)
            if cells is None:
                return False
            self._ending_soon.discard(key)
            self._paused[key] = cells
            self._reserved_cells -= cells
            self._pending.append(JobRequest("pause", key))
            self._changed.notify()
        return True

    def resume(self, key: ClaimRef, *, if_free: bool = False) -> bool:
        """Ask the engine to resume a paused job. Return whether the job was paused.

        With `if_free`, also return False if no slot is free for the job, or not enough cells.
        """
        with self._changed:
            cells = self._paused.get(key)
            if cells is None or (if_free and not self._is_free(cells)):
                return False
            del self._paused[key]
            self._reserved[key] = cells
            self._reserved_cells += cells
            self._pending.append(JobRequest("resume", key))
            self._changed.notify()
        return True

    def set_ending_soon(self, keys: set[ClaimRef]) -> bool:
        """Replace the keys of the jobs that are known to end soon. Return whether a key was added."""
        with self._changed:
            before, self._ending_soon = self._ending_soon, keys
        return not keys <= before

    def recall(self) -> None:
        """Ask the engine to return the jobs that have no slot, paused ones included."""
        with self._changed:
            self._pending.append(RECALL)
            self._changed.notify()

    def _is_free(self, cells: int) -> bool:
        return len(self._reserved) < self._slots and cells <= self._cells - self._reserved_cells

    def free_capacity(self) -> FreeCapacity:
        """Return how many slots and cells are not reserved, and for how many slots a job may now be prefetched."""
        with self._changed:
            # `free` is negative while prefetched jobs wait. Each of them will take one slot that becomes free soon.
            free = self._slots - len(self._reserved)
            prefetchable = min(max_prefetched(self._slots, len(self._paused)), len(self._ending_soon)) + min(0, free)
            return FreeCapacity(max(0, free), max(0, self._cells - self._reserved_cells), max(0, prefetchable))

    def take(self) -> list[Item]:
        """Remove and return all jobs and requests that arrived since the last call, in order."""
        if not self._pending:
            return []
        with self._changed:
            taken = list(self._pending)
            self._pending.clear()
            return taken

    def wake(self) -> None:
        """Wake up the engine's thread, so that it checks its stop event."""
        with self._changed:
            self._changed.notify()

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Block until there is a job or a request, `timeout_s` has passed, or `stop` is set and `wake` was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or stop.is_set(), timeout_s)

    def wait_until_full(self, stop: threading.Event, now: Callable[[], float], timeout_s: float) -> None:
        """Block until every slot is reserved, `timeout_s` seconds have passed on the clock `now`, or `stop` is set."""
        until_s = now() + timeout_s
        with self._changed:
            while len(self._reserved) < self._slots and not stop.is_set() and (left_s := until_s - now()) > 0:
                self._changed.wait(left_s)
