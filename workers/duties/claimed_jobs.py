"""The jobs that this worker has claimed, from the answer to the claim until the job is settled or released.

Several threads share these jobs. The claimer adds jobs. The leases duty and the delivery remove lost jobs, the leases
duty and the doorbell duty mark jobs as canceled, and the delivery removes jobs that ended or were released. A job is
held under at most one claim. If this worker claims the same job again, the lease of the older claim was lost.

A job counts as followed if a client reads its text while it is generated, or if nobody can say: doors of earlier
versions do not. While such a door admits jobs, all jobs count as followed, because it may follow those of other doors.
"""

import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from shared.candidates import candidates_in
from shared.jobs.fewer_passages import read_fewer
from shared.jobs.job import ClaimedJob, ClaimRef, Usage
from shared.store.replies import Progress

#: CPU time of a job's preparation and grammar that is not charged. A usual schema or a prompt of a few pages takes less
#: to prepare, so that equal jobs cost the same.
_FREE_CPU_S = 0.002

#: Maximum number of remembered notices of one kind, about jobs that this worker does not hold. Such a job has either
#: ended, or the notice arrived before the answer to its claim. A worker never waits for the answers to this many claims
#: at once.
_EARLY_NOTICES = 256
#: How long after the claim of a job of an earlier version's door all jobs count as followed, in seconds.
OLDER_DOOR_S = 600.0


class _EarlyNotices:
    """The ids of the newest jobs that a notice was about before the answer to their claims arrived."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, job_id: str) -> None:
        self._ids[job_id] = None
        while len(self._ids) > _EARLY_NOTICES:
            del self._ids[next(iter(self._ids))]

    def take(self, job_id: str) -> bool:
        """Return whether there was a notice about the job, and forget it."""
        return self._ids.pop(job_id, False) is None

    def __len__(self) -> int:
        return len(self._ids)


@dataclass(eq=False)
class HeldJob:
    """One claimed job. `cancel_requested` and `is_followed` are written only under the lock of ClaimedJobs."""

    claimed: ClaimedJob
    #: Clock time just before the claim was sent.
    claimed_s: float
    #: Clock time at which the engine had reported the job's end; None before. Only the delivery writes this field.
    ended_s: float | None = None
    cancel_requested: bool = False
    #: Whether new text is sent to the store at once, because somebody may follow it.
    is_followed: bool = True
    #: Whether the job's end was sent to the store. If so, only the answer to that call decides whether the job was
    #: lost. Only the delivery writes this field.
    settling: bool = False
    #: Tokens generated so far, as the engine's last event reported them. Only the delivery writes this field.
    generated: int = 0
    #: CPU time of the job's preparation. Only the claimer writes this field.
    prepare_cpu_s: float = 0.0
    #: The number of passages in the prompt if the worker has taken the second choice; None for the job as it is. Only
    #: the claimer writes this field.
    passages: int | None = None
    #: CPU time of the answer's grammar so far, as the engine's last event reported it. Only the delivery writes this.
    grammar_cpu_s: float = 0.0
    #: Clock time at which the job was last submitted or resumed; None while it is prepared. Only the claimer writes it.
    slot_since_s: float | None = None
    #: Clock time at which the job was told to give its slot to another job; None if it was not. Only the claimer writes
    #: this field.
    paused_since_s: float | None = None
    #: The claim. Each new text looks for it.
    claim: ClaimRef = field(init=False)

    def __post_init__(self) -> None:
        self.claim = self.claimed.held

    def take_fewer_passages(self) -> bool:
        """Replace the prompt by the one with fewer passages, and return whether the job has one. Happens once."""
        found = read_fewer(self.claimed.payload)
        if found is None:
            return False
        payload, self.passages = found
        self.claimed = replace(self.claimed, payload=payload)
        return True

    def slot_ms(self, now_s: float) -> int | None:
        """Return for how long the job has had its slot, in ms: 0 while it is prepared, None while it is paused."""
        if self.paused_since_s is not None:
            return None
        return 0 if self.slot_since_s is None else max(0, round((now_s - self.slot_since_s) * 1000))

    def cpu_tokens(self, prefill_tps: float) -> int:
        """Return the tenant's charge for CPU time, in weighted tokens.

        These are the prompt tokens that the engine could have computed in the CPU time of the preparation and of the
        grammar. `prefill_tps` is the engine's prefill rate. The first 2 ms are free.
        """
        return int(max(0.0, self.prepare_cpu_s + self.grammar_cpu_s - _FREE_CPU_S) * prefill_tps)

    def own_usage(self, usage: Usage) -> Usage:
        """Return the usage of this attempt. Tokens that earlier attempts have generated are read like a prompt.

        Candidates that are generated side by side share the time of the decoding, so it is left out for them.
        """
        if candidates_in(self.claimed.payload) > 1:
            usage = replace(usage, decode_ms=None)
        kept = len(self.claimed.answer)
        own = max(0, usage.completion_tokens - kept)  # `kept` counts the ends of candidates too
        return replace(usage, prompt_tokens=usage.prompt_tokens + kept, completion_tokens=own) if kept else usage


class ClaimedJobs:
    """The jobs that this worker holds leases for, by job id."""

    def __init__(self, on_add: Callable[[HeldJob], None] | None = None) -> None:
        """`on_add` is called with each job that is added, on the thread that adds it."""
        self._lock, self._on_add = threading.Lock(), on_add
        self._by_id: dict[str, HeldJob] = {}
        self._early_cancels, self._early_follows = _EarlyNotices(), _EarlyNotices()
        #: Clock time until which all jobs that are claimed count as followed.
        self._all_followed_until_s = -math.inf

    def add(self, claimed: Sequence[ClaimedJob], now_s: float) -> tuple[list[HeldJob], list[ClaimRef]]:
        """Add jobs that are not held yet. Return the added jobs, and the older claims that they replace."""
        added, replaced = [], []
        with self._lock:
            for job in claimed:
                older = self._by_id.get(job.id)
                if older is not None and older.claim == job.held:
                    continue
                if older is not None:
                    replaced.append(older.claim)
                held_job = HeldJob(job, now_s)
                held_job.cancel_requested = self._early_cancels.take(job.id) or job.cancel_requested
                held_job.is_followed = self._early_follows.take(job.id) or self._may_be_followed(job, now_s)
                self._by_id[job.id] = held_job
                added.append(held_job)
        if self._on_add is not None:
            for held_job in added:
                self._on_add(held_job)
        return added, replaced

    def remove(self, claim: ClaimRef) -> HeldJob | None:
        """Remove and return a job that has ended, was released or was lost. Return None if this claim is not held."""
        with self._lock:
            held_job = self._by_id.get(claim.id)
            if held_job is None or held_job.claim != claim:
                return None
            del self._by_id[claim.id]
            return held_job

    def get(self, claim: ClaimRef) -> HeldJob | None:
        """Return the job held under exactly this claim, or None."""
        held_job = self.find(claim.id)
        return held_job if held_job is not None and held_job.claim == claim else None

    def request_cancel(self, job_id: str) -> ClaimRef | None:
        """Mark the job as canceled. Return its claim, or None if the job is not held.

        A job that is not held has ended, or the answer to its claim has not arrived yet. For the second case, the
        cancel is remembered.
        """
        with self._lock:
            held_job = self._by_id.get(job_id)
            if held_job is not None:
                held_job.cancel_requested = True
                return held_job.claim
            self._early_cancels.add(job_id)
            return None

    def note_follower(self, job_id: str) -> ClaimRef | None:
        """Mark the job as followed. Return its claim, or None if the job is not held or is already marked."""
        with self._lock:
            held_job = self._by_id.get(job_id)
            if held_job is None:
                self._early_follows.add(job_id)
            elif not held_job.is_followed:
                held_job.is_followed = True
                return held_job.claim
            return None

    def _may_be_followed(self, job: ClaimedJob, now_s: float) -> bool:
        if job.is_followed is None:
            self._all_followed_until_s = now_s + OLDER_DOOR_S
        return job.is_followed is not False or now_s < self._all_followed_until_s

    def find(self, job_id: str) -> HeldJob | None:
        """Return the job with this id, under whatever claim it is held, or None."""
        with self._lock:
            return self._by_id.get(job_id)

    def jobs(self) -> list[HeldJob]:
        with self._lock:
            return list(self._by_id.values())

    @property
    def paused(self) -> int:
        return sum(held_job.paused_since_s is not None for held_job in self.jobs())

    def paused_claims(self) -> set[ClaimRef]:
        return {held_job.claim for held_job in self.jobs() if held_job.paused_since_s is not None}

    @property
    def largest_paused(self) -> int:
        """The most KV cells that any paused job needs to resume, as the door has estimated them; 0 without one."""
        paused = (held_job.claimed for held_job in self.jobs() if held_job.paused_since_s is not None)
        return max((claimed.cells for claimed in paused), default=0)

    def computing(self, leaving: Collection[ClaimRef] = ()) -> int:
        """Return how many held jobs, prepared or not, are neither paused nor among the `leaving` ones."""
        return sum(job.paused_since_s is None and job.claim not in leaving for job in self.jobs())

    def held(self) -> list[ClaimRef]:
        return [held_job.claim for held_job in self.jobs()]

    def progress(self, prefill_tps: float) -> dict[str, Progress]:
        """Return the progress of each held job, by job id. `prefill_tps` is the engine's prefill rate."""
        with self._lock:
            return {job_id: Progress(job.generated, job.cpu_tokens(prefill_tps)) for job_id, job in self._by_id.items()}

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_id)
