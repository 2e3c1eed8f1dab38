"""Jobs in: claim as many as there are free slots, hand each to the engine while it runs its last step.

A slot is free for a claim only when the end of its former job is written: turns across tenants are
exact only if the true cost is in the store before the next claim. Where a job's end is known to be
near, another may be claimed for its slot before, for one slot in eight: such a job in hand waits in the
engine and begins in the step after. Until a claim is answered, the same claim id is asked again, so that
a lost answer loses no job.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from shared import failpoints
from shared.clock import Clock
from shared.jobs.job import Claimed
from shared.jobs.outcomes import EndCode
from workers.duties.claimed_jobs import ClaimedJobs, HeldJob
from workers.engine.events import FreeCapacity, JobRejected, JobSpec
from workers.engine.inbox import most_ahead
from workers.engine.loop import Engine

if TYPE_CHECKING:
    from shared.store.store import Store

log = structlog.get_logger()

#: How long an idle worker trusts the doorbell before it looks by itself: rings are lost with the
#: process that took them off the list, and a look costs the store about 50 us.
LOOK_S = 1.0

#: A job that waits so long for a free slot waits too long; less is the claim's own time.
_IDLE_AFTER_S = 0.005


@dataclass(frozen=True)
class _PendingClaim:
    """A claim that was sent and is not answered; repeated as it was."""

    claim_id: str
    slots: int
    cells: int


class Claimer:
    """Claims for one worker; its passes run on one thread, the flags may be set by any."""

    def __init__(
        self,
        store: "Store",
        worker: str,
        model: str,
        *,
        claimed_jobs: ClaimedJobs,
        engine: Engine,
        clock: Clock,
        fail: Callable[[HeldJob, EndCode, str], None],
        learn: Callable[[Mapping[str, Any], int], None],
    ) -> None:
        """`fail` ends a job that the engine rejects; `learn` gets each payload and its prompt's length in tokens."""
        self._store = store
        self._worker = worker
        self._model = model
        self._slots = engine.backend.slots
        self._claimed_jobs = claimed_jobs
        self._engine = engine
        self._clock = clock
        self._fail = fail
        #: When, and at which step, a slot was first free while a job may have waited; None: neither.
        self._hungry: tuple[float, int] | None = None
        #: Steps that ran so although a job had waited 5 ms, their time being alike: what a claim that comes late costs.
        self.idle_slot_steps = 0
        self.learn = learn
        self._under_way: _PendingClaim | None = None
        self._rung = True
        self._next_look_s = 0.0
        #: No claims for now: no beat was answered yet, or an operator drains this worker.
        self.paused = True
        #: The process ends; not taken back.
        self.closed = False

    def ring(self) -> None:
        """A job may wait: the next pass looks."""
        self._rung = True
        if self._free().slots > 0:
            self.note_hunger()

    def note_hunger(self) -> None:
        """A slot is free, or about to be: from now on a waiting job waits because of us. Any thread."""
        if self._rung and self._hungry is None and self._engine.room().slots > 0:
            self._hungry = (self._clock.monotonic(), self._engine.stats.steps)

    @property
    def wants_ahead(self) -> bool:
        """Whether a job may wait that could be held in hand for a slot that comes free soon."""
        return self._rung and not self.closed and not self.paused and self._engine.room().soon > 0

    @property
    def asking(self) -> bool:
        """Whether a claim was sent whose answer is not known."""
        return self._under_way is not None

    @property
    def has_room(self) -> bool:
        """Whether a ring of the doorbell is of any use to this worker now."""
        return not self.closed and not self.paused and self._free().slots > 0

    def one_pass(self, *, freed: bool) -> float | None:
        """Claim if there is room and reason to. `freed`: a slot or cells came free since the last pass.

        How long until the next look, in seconds; None when only a free slot makes one useful.
        Raises StoreUnavailable; the claim under way is kept.
        """
        if self._under_way is None:
            if self.closed or self.paused:
                return None
            free = self._free()
            room = free.slots + (free.soon if self._rung else 0)
            if room <= 0:
                return None
            if not (self._rung or freed or self._clock.monotonic() >= self._next_look_s):
                return self._until_look()
            self._rung = False
            self._under_way = _PendingClaim(secrets.token_urlsafe(9), room, free.cells)
        asked_s = self._clock.monotonic()
        ask = self._under_way
        claimed = self._store.claim(self._worker, ask.claim_id, self._model, room=ask.slots, cells_free=ask.cells)
        self._count_idle(fed=bool(claimed))
        self._next_look_s = asked_s + LOOK_S
        if len(claimed) >= ask.slots:
            self._rung = True
        if self.closed:
            self._give_back(claimed)
        else:
            self._take_in(claimed, asked_s)
        # Only now: until they are in somebody's hands a drain must not take us for done.
        self._under_way = None
        return self._until_look()

    def _count_idle(self, *, fed: bool) -> None:
        since, self._hungry = self._hungry, None
        if not fed or since is None:
            return
        waited_s = self._clock.monotonic() - since[0]
        if waited_s > _IDLE_AFTER_S:
            steps = self._engine.stats.steps - since[1]
            self.idle_slot_steps += round(steps * (1 - _IDLE_AFTER_S / waited_s))

    def _until_look(self) -> float:
        return max(0.0, self._next_look_s - self._clock.monotonic())

    def _free(self) -> FreeCapacity:
        """As the engine's room; a job counts until its end is written, so that no more than `soon` are ever in hand."""
        room, unheld = self._engine.room(), self._slots - len(self._claimed_jobs)
        free = max(0, min(room.slots, unheld))
        return FreeCapacity(free, room.cells, max(0, min(room.soon, unheld + most_ahead(self._slots) - free)))

    def _give_back(self, claimed: list[Claimed]) -> None:
        """The answer came after the drain had begun."""
        if claimed:
            self._store.release(self._worker, [job.held for job in claimed])

    def _take_in(self, claimed: list[Claimed], asked_s: float) -> None:
        for job in claimed:
            failpoints.reach("after_claim", job.id)
        entries, replaced = self._claimed_jobs.take(claimed, asked_s)
        for key in replaced:
            log.info("job.lost", job=key.partition(":")[0], told_by="claim")
            self._engine.cancel(key, drop=True)
        for entry in entries:
            self._hand_over(entry)

    def _hand_over(self, entry: HeldJob) -> None:
        """From `submit` on, the engine owns the job and says how it ends; until then this function does."""
        try:
            prepared = self._engine.prepare(_spec(entry))
        except JobRejected as rejected:
            self._fail(entry, EndCode(rejected.code), rejected.message)
            return
        except Exception:  # one job's fault must not end the others'
            log.exception("job.prepare_fault", job=entry.claimed.id)
            self._fail(entry, EndCode.ENGINE_ERROR, "the engine could not take this job in")
            return
        self._engine.submit(prepared)
        if entry.cancel_asked:
            # Asked before the engine knew the key; the bell marks the entry before it tells the engine,
            # so one of the two calls comes after submit.
            self._engine.cancel(entry.key)
        failpoints.reach("after_submit", entry.claimed.id)
        try:
            self.learn(prepared.spec.payload, prepared.prompt_tokens)
        except Exception:  # statistics: the job runs, whatever they make of it
            log.exception("job.learn_fault", job=entry.claimed.id)


def _spec(entry: HeldJob) -> JobSpec:
    """The job as the engine takes it. Raises JobRejected when what the store holds of it is no request."""
    job = entry.claimed
    # Checked although the type says so: the payload was read back from the store, where anyone may write.
    whole = isinstance(job.payload, dict) and (
        isinstance(job.payload.get("prompt"), str)
        or any(isinstance(job.payload.get(name), list) for name in ("messages", "input"))
    )
    if not whole or job.max_tokens < 1:
        raise JobRejected(EndCode.CORRUPT, "what the store holds of this job is no request")
    return JobSpec(
        key=entry.key,
        tenant=job.tenant,
        payload=job.payload,
        max_tokens=job.max_tokens,
        # From the moment before the claim was sent: early by the call's length, never late.
        deadline_s=entry.taken_s + job.deadline_in_ms / 1000,
        start_by_s=None if job.start_in_ms is None else entry.taken_s + job.start_in_ms / 1000,
    )
