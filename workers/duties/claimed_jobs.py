"""What this worker holds: an entry for every claimed job, from the claim's answer to the settle's.

Several threads meet here: intake takes, leases and bell lose and cancel, delivery lets go. A job is
held under one claim at most; a newer claim of the same job means that the older one was lost.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from shared.jobs.job import Claimed, Held

#: Cancels that came before their claim's answer; more than a worker can have under way.
_EARLY_CANCELS = 256


@dataclass
class HeldJob:
    """One held job. `cancel_asked` is written under the lock of its Holding, the rest at birth."""

    key: str
    claimed: Claimed
    taken_s: float
    cancel_asked: bool = False
    #: Its end is on the way to the store, whose answer says whose the job is. Written by delivery alone.
    settling: bool = False
    #: Tokens of its answer, as last heard of. Written by delivery alone.
    generated: int = 0


def key_of(held: Held) -> str:
    """The name of one attempt of a job inside the worker: `<id>:<token>`."""
    return f"{held.id}:{held.token}"


class ClaimedJobs:
    """The jobs under this worker's leases, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[str, HeldJob] = {}
        self._early_cancels: dict[str, None] = {}

    def take(self, claimed: Sequence[Claimed], now_s: float) -> tuple[list[HeldJob], list[str]]:
        """Hold these jobs. Answers their entries, and the keys of older claims that they replace."""
        entries, replaced = [], []
        with self._lock:
            for job in claimed:
                older = self._by_id.get(job.id)
                if older is not None and older.claimed.token == job.token:
                    continue
                if older is not None:
                    replaced.append(older.key)
                early = self._early_cancels.pop(job.id, False) is None
                entry = HeldJob(key_of(job.held), job, now_s, cancel_asked=job.cancel_requested or early)
                self._by_id[job.id] = entry
                entries.append(entry)
        return entries, replaced

    def let_go(self, key: str) -> HeldJob | None:
        """The job's end is written, or it is no longer ours; None when it was not held under this key."""
        job_id = key.partition(":")[0]
        with self._lock:
            entry = self._by_id.get(job_id)
            if entry is None or entry.key != key:
                return None
            del self._by_id[job_id]
            return entry

    def get(self, key: str) -> HeldJob | None:
        """The entry of this very claim."""
        with self._lock:
            entry = self._by_id.get(key.partition(":")[0])
        return entry if entry is not None and entry.key == key else None

    def ask_cancel(self, job_id: str) -> str | None:
        """Note that the job is to be stopped; its key, or None when its claim has not arrived (or has ended)."""
        with self._lock:
            entry = self._by_id.get(job_id)
            if entry is not None:
                entry.cancel_asked = True
                return entry.key
            self._early_cancels[job_id] = None
            while len(self._early_cancels) > _EARLY_CANCELS:
                del self._early_cancels[next(iter(self._early_cancels))]
            return None

    def named(self) -> list[Held]:
        """Every job as a renewal names it."""
        with self._lock:
            return [entry.claimed.held for entry in self._by_id.values()]

    def generated(self) -> dict[str, int]:
        """How many tokens of each job's answer there are, by its id."""
        with self._lock:
            return {job_id: entry.generated for job_id, entry in self._by_id.items()}

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_id)
