"""Contests for slots in the reference model: which running job gives its slot to a tenant that wants one."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob
from tests.support.model_turns import active

if TYPE_CHECKING:
    from tests.support.model import Model

#: For the first part of a quantum, a job keeps its slot in any case. Another tenant has to lead by the second part.
EARLY_PART, LEAD_PART = 0.25, 0.75
#: In a large pool, the other tenant has to lead by this part of a quantum for each slot of the pool but the first, and
#: by this many times the lead if the job would miss its deadline by the pause.
LEAD_PART_OF_SLOT, RISK_FACTOR = 0.25, 4
#: For each tenant that wants slots, as many slots as this cannot have a paused job, except for a part of all slots, and
#: for a number of them.
SLOTS_OF_TENANT, PAUSED_PART, MIN_PAUSED = 4, 0.25, 4
#: Slots become free often if this many did in this part of a quantum.
OFTEN, TURNOVER_PART = 2, 0.5
#: The rate of a slot whose worker reports none, in thousandths of a weighted token per ms.
USUAL_SLOT_RATE = 100


@dataclass
class Entry:
    """A job that computes: how long it has had its slot, and the expected time of the rest of its answer."""

    job: ModelJob
    row_ms: int
    left_ms: float


@dataclass
class Contender:
    """An owner: its slots in the pool, its weight and its service; `young` is what its newest jobs may still get."""

    rows: int
    weight: float
    service: float
    young: float = 0.0


@dataclass
class Contest:
    """The slots of one worker, and those who have or want them."""

    model: "Model"
    slug: str
    quantum_mwt: float
    entries: list[Entry]
    #: Whether slots often become free without a pause.
    frees_slots: bool
    contenders: dict[str, Contender] = field(default_factory=dict)

    def __post_init__(self) -> None:
        turns = self.model.fairness == "turns"
        slots, quantum_mwt = self.model.pools[self.slug].slots, self.quantum_mwt
        self.lead_mwt = 1_000 if turns else lead_part(slots) * quantum_mwt
        self.first_lead_mwt = 0 if turns else lead_part(slots, starts_first=True) * quantum_mwt
        self.young_mwt = 0 if turns else quantum_mwt
        for entry in self.entries:
            self.note_slot(entry.job.tenant, entry.job.group, 0, entry.row_ms)

    def _contender(self, owner: str, group: str) -> Contender:
        if owner not in self.contenders:
            model, turns = self.model, self.model.turns
            service = turns.service[owner, self.slug]
            if owner not in active(model, self.slug, group) + active(model, self.slug, group, is_batch=True):
                service = max(service, turns.virtual.get((group, self.slug), 0))
            weight = model.weights_milli.get(owner, 1_000) / 1_000
            self.contenders[owner] = Contender(len(self._running(owner, paused=False)), weight, service)
        return self.contenders[owner]

    def _running(self, owner: str, *, paused: bool) -> list[ModelJob]:
        """Return the owner's jobs in the pool that compute, or those that are paused."""
        running = [job for job in self.model.inflight() if job.state == "running" and job.slug == self.slug]
        mine = [job for job in running if owner in {job.tenant, job.group}]
        return [job for job in mine if (job.paused_since_ms > 0) == paused]

    def _both(self, tenant: str, group: str) -> list[Contender]:
        return [self._contender(owner, place) for owner, place in ((group, ""), (tenant, group)) if owner]

    def note_slot(self, tenant: str, group: str, rows: int, row_ms: int) -> None:
        """Note that a job got its slot `row_ms` ago, or (`rows` is 1) now, or (-1) that it loses its slot."""
        young_mwt = 0 if rows < 0 else self.young_mwt * max(0, 1 - row_ms / self.model.quantum_ms)
        for one in self._both(tenant, group):
            one.rows, one.young = one.rows + rows, one.young + young_mwt / one.weight

    def note_new_row(self, job: ModelJob, group: str, *, rows: int = 1) -> None:
        """Note that a job gets a slot now; `rows` is 0 if its slot is counted already."""
        self.note_slot(job.tenant, group, rows, 0)
        self.entries.append(Entry(job, 0, 0.0))

    def giver(self, tenant: str, group: str, *, is_batch: bool) -> Entry | None:
        """Return the job that gives its slot to the tenant, or None. Batch jobs give their slots to others first."""
        running = [entry for entry in self.entries if not entry.job.paused_since_ms]
        batch = [entry for entry in running if entry.job.priority < 0]
        if not is_batch and (old := [entry for entry in batch if entry.row_ms >= EARLY_PART * self.model.quantum_ms]):
            return min(old, key=lambda entry: (entry.row_ms, entry.job.id))
        rivals = batch if is_batch else [entry for entry in running if entry.job.priority >= 0]
        return min((entry for entry in rivals if self._gives(entry, tenant, group)), key=self._order, default=None)

    def _gives(self, entry: Entry, tenant: str, group: str) -> bool:
        job, quantum_ms = entry.job, self.model.quantum_ms
        if job.tenant == tenant:
            return False
        has, wants = self._both(job.tenant, job.group), self._both(tenant, group)
        level = -1 if has[0] is wants[0] else 0
        one, other = has[level], wants[level]
        leads_by = one.service - other.service
        has_more = (one.rows - 1) * other.weight > other.rows * one.weight
        is_risky = is_urgent(self.model, entry)
        is_old = entry.row_ms >= EARLY_PART * quantum_ms
        if not self.frees_slots and has_more and not is_risky and is_old and -leads_by <= self.lead_mwt / other.weight:
            return True
        lead_mwt = self.lead_mwt if other.rows or self._running(tenant, paused=True) else self.first_lead_mwt
        lead_mwt = RISK_FACTOR * self.lead_mwt if is_risky else lead_mwt
        return entry.row_ms >= quantum_ms and one.service > other.service + other.young + lead_mwt / one.weight

    def _order(self, entry: Entry) -> tuple[float | str, ...]:
        """Order the givers: those that lose least, of the owner with the most slots for its weight, first."""
        job, quantum_ms = entry.job, self.model.quantum_ms
        owner, *within = self._both(job.tenant, job.group)
        rank = 2 if is_urgent(self.model, entry) else entry.left_ms <= quantum_ms
        in_group = -within[0].rows / within[0].weight if within else 0
        is_young = entry.row_ms < quantum_ms
        return rank, -owner.rows / owner.weight, -owner.service, in_group, is_young, entry.row_ms, job.id

    def next_ms(self) -> int:
        """Return in how many ms another exchange may pause a job, -1 if nobody else wants the slots."""
        quantum_ms, wanted, rests_ms = self.model.quantum_ms, False, []
        lacks_slot = any(not self._running(owner, paused=False) for owner in active(self.model, self.slug)[:1])
        for entry in (entry for entry in self.entries if not entry.job.paused_since_ms):
            tenant, group, is_batch = entry.job.tenant, entry.job.group, entry.job.priority < 0
            rivals = set(active(self.model, self.slug, is_batch=is_batch)) - {group or tenant}
            rivals |= set(active(self.model, self.slug, group, is_batch=is_batch)) - {tenant} if group else set()
            rivals |= set(active(self.model, self.slug)) if is_batch else set()
            wanted = wanted or bool(rivals)
            rests = [part * quantum_ms - entry.row_ms for part in (EARLY_PART, 1)]
            rests_ms += [rest for rest in rests if rest > 0]
            rests_ms += [0] if lacks_slot and entry.row_ms >= quantum_ms else []
        soonest_ms = min([quantum_ms, *rests_ms])
        return math.ceil(max(soonest_ms, EARLY_PART * quantum_ms)) if wanted else -1


def lead_part(slots: int, *, starts_first: bool = False) -> float:
    """Return by how many quanta a tenant leads before another one, which has a running job or none, takes its slot."""
    part = LEAD_PART_OF_SLOT * max(0, slots - 1)
    return part if starts_first else max(LEAD_PART, part)


def most_paused(model: "Model", slug: str, slots: int) -> int:
    """Return how many paused jobs the workers with these slots may hold."""
    wanted = SLOTS_OF_TENANT * len(active(model, slug)) / max(1, slots, model.pools[slug].slots)
    return min(slots, max(MIN_PAUSED, math.ceil(slots * max(PAUSED_PART, 1 - wanted))))


def is_urgent(model: "Model", entry: Entry) -> bool:
    """Return whether the job would miss its deadline if it waited for a quantum."""
    return model.now_ms + model.quantum_ms + entry.left_ms > entry.job.deadline_ms


def count_freed(model: "Model", entries: list[Entry], paused: list[Entry], slots: int, pool_slots: int) -> int:
    """Return how many slots of the pool became free lately for other owners than the one that got the most."""
    period_ms = TURNOVER_PART * model.quantum_ms
    got = Counter(entry.job.group or entry.job.tenant for entry in entries if entry.row_ms < period_ms)
    by_pauses = sum(model.now_ms - entry.job.paused_since_ms < period_ms for entry in paused)
    freed = max(0, got.total() - max(got.values(), default=0) - by_pauses)
    return freed * max(slots, pool_slots) // max(1, slots)


def left_ms(job: ModelJob, generated: int, tpot_ms: float) -> float:
    """Return the expected time of the rest of an answer."""
    limit = job.cut_tokens or job.max_tokens
    expected = min(limit, (job.cost_mwt - 1_000 * job.prompt_tokens) / job.weight_milli)
    left = expected - generated if expected > generated else (limit - generated) / 2
    return max(0, left) * tpot_ms
