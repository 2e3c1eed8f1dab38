"""Waits for slots in the reference model where running jobs are paused in favor of tenants below their share."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support import model_turns
from tests.support.model_contest import EARLY_PART, OFTEN, RISK_FACTOR, TURNOVER_PART, lead_part, most_paused
from tests.support.model_lengths import MIN_ANSWERS, Lengths
from tests.support.model_places import LIVE_MS
from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model_admission import AdmissionView
    from tests.support.model_books import Rates


#: Returns the service of an owner in the set of a group, or that with which it would enter the set.
ScoreOf = Callable[["AdmissionView", str, str], float]


@dataclass
class Level:
    """A set whose owners share slots, as one of them sees it."""

    weight: int
    #: The sum of the weights, the number of the owners, and how many of them are served before this one.
    weights: int
    owners: int
    ahead: int
    #: By how much its service exceeds that of every other owner that has slots.
    lead: float
    #: The slots and weights of the owners that want no more slots.
    idlers: list[tuple[int, int]] = field(default_factory=list)

    def share(self, slots: int) -> float:
        """Return the owner's slots by the max-min rule."""
        left, weights, idlers = slots, self.weights, list(self.idlers)
        while content := [idler for idler in idlers if idler[0] * weights <= left * idler[1]]:
            rows, weight = content[0]
            idlers.remove((rows, weight))
            left, weights = left - rows, weights - weight
        return left * self.weight / weights

    def first(self, share: float, slots: int) -> int:
        """Return how many slots the owner gets whenever it wants them."""
        return max(math.floor(share), int(self.owners <= slots))

    def lead_ms(self, view: "AdmissionView", rates: "Rates", slots: int) -> float:
        """Return the ms until the others have caught up with the owner."""
        turns, all_slots = view.model.fairness == "turns", max(1, view.pool.slots)
        lead_mwt = 1_000 if turns else lead_part(all_slots) * view.model.quantum_ms * rates.mu_wtps / all_slots
        excess = max(0, self.lead - lead_mwt * 1_000 / self.weight)
        unit_mwt = view.mean_mwt / 1_000 if turns else 1
        work_mwt = excess * (self.weights - self.weight) / 1_000 * unit_mwt
        return work_mwt * all_slots / (rates.mu_wtps * max(1, min(slots, all_slots)))


def level_of(view: "AdmissionView", owner: str, group: str, score: float, weight: int, weights: int) -> Level:
    """Return the level of an owner with this service in the set of a group, "" for the pool's."""
    model, slug, virtual = view.model, view.job.slug, view.model.turns.virtual
    active = model_turns.active(model, slug, group)
    services = {name: model.turns.service[name, slug] for name in active}
    ahead = sum(service < score for service in services.values())
    level = Level(weight, weights, len({*active, owner}), ahead, 0)
    held = Counter[str]()
    for job in _computing(view):
        held.update({job.tenant, job.group or job.tenant})
    of_holders = []
    for holder, rows in held.items():
        if holder in {view.unit, view.job.tenant} or _set_of(view, holder) != group:
            continue
        if holder not in services:
            others_weight = model.weights_milli.get(holder, 1_000)
            level.idlers.append((rows, others_weight))
            level.owners, level.weights = level.owners + 1, level.weights + others_weight
        least = min([*services.values(), score])
        behind = max(virtual.get((group, slug), 0), model.turns.service[holder, slug], least)
        of_holders.append(services.get(holder, behind))
    level.lead = max(0, score - max(of_holders, default=score))
    return level


def _computing(view: "AdmissionView") -> list[ModelJob]:
    running = [job for job in view.left if job.state == "running" and job.slug == view.job.slug]
    return [job for job in running if job.priority >= 0 and not job.paused_since_ms]


def _set_of(view: "AdmissionView", owner: str) -> str:
    return "" if owner.startswith("@") else view.model.turns.group(owner, view.job.slug)


def is_contested(view: "AdmissionView") -> bool:
    """Return whether the job can get a slot that another job has."""
    is_live = view.model.now_ms - view.pool.can_pause_ms <= LIVE_MS
    is_recent = view.model.now_ms - view.pool.freed_ms < TURNOVER_PART * view.model.quantum_ms
    is_often_free = view.pool.freed >= OFTEN and is_recent
    return view.model.preempts and not view.is_batch and is_live and not view.idle and not is_often_free


@dataclass
class SlotView:
    """The slots of a pool, as they matter for the tenant of an offered job. Work is in thousandths of a wt."""

    mu_wtps: float
    slots: int
    quantum_ms: int
    share: float
    first: int
    ahead: int
    owners: int
    lead_ms: float
    #: The tenant's running jobs, their expected work, and the mean work of its queued jobs.
    jobs: int
    running_mwt: float
    queued_mwt: float
    mean_mwt: float
    others_mwt: float
    is_crowded: bool

    def wait_ms(self, rank: int) -> float:
        """Return the ms until a job gets a slot before which `rank` queued jobs of its tenant start."""
        before = self.jobs + rank
        if self.is_crowded:
            quanta = 1 + RISK_FACTOR * lead_part(self.slots) * self.owners / max(1, self.slots)
            room_ms = self.quantum_ms * quanta if before == 0 else math.inf
            return max(self.lead_ms, min((1 + self.ahead + before) * self.mean_mwt / self.mu_wtps, room_ms))
        if before < self.first:
            return EARLY_PART * self.quantum_ms + self.lead_ms
        if before == 0:
            return self.quantum_ms * (1 + self.ahead / max(1, self.slots)) + self.lead_ms
        ends = before - max(1, self.first) + 1
        own_mwt = (self.running_mwt + rank * self.queued_mwt) * ends / before
        turns_mwt = own_mwt * max(1, self.slots) / self.share if self.share else math.inf
        return max(self.lead_ms, min(turns_mwt, own_mwt + self.others_mwt) / self.mu_wtps)

    def is_early(self, rank: int) -> bool:
        """Return whether the job gets one of the slots that are its tenant's share at once."""
        return not self.is_crowded and self.jobs + rank < self.first and self.lead_ms == 0

    def paused_ms(self, compute_ms: float) -> float:
        """Return for how long a job that computes for this time is paused."""
        if self.share >= 1 or compute_ms <= self.quantum_ms:
            return 0.0
        turns_ms = (compute_ms - self.quantum_ms) * (1 / self.share - 1) if self.share else math.inf
        return min(turns_ms, self.others_mwt / self.mu_wtps)


def slot_view(view: "AdmissionView", rates: "Rates", score_of: ScoreOf) -> SlotView:
    """Return what is known of the slots; `score_of` returns an owner's service in a set."""
    model, job, slots = view.model, view.job, view.pool.slots
    pool = level_of(view, view.unit, "", score_of(view, view.unit, ""), view.weight, view.weights)
    share = pool.share(slots)
    first, ahead, lead_ms = pool.first(share, slots), pool.ahead, pool.lead_ms(view, rates, slots)
    if view.unit != job.tenant:
        members = {*model_turns.active(model, job.slug, view.unit), job.tenant}
        weight, of_group = model.weights_milli.get(job.tenant, 1_000), max(1, first)
        score = score_of(view, job.tenant, view.unit)
        level = level_of(view, job.tenant, view.unit, score, weight, weight * len(members))
        part = level.share(of_group)
        first = level.first(part, of_group) if first else 0
        share, ahead = min(1, share) * part, ahead + level.ahead
        lead_ms += level.lead_ms(view, rates, of_group)
    running = [other for other in view.left if other.state == "running" and other.slug == job.slug]
    mine = [other for other in running if other.tenant == job.tenant and other.priority >= 0]
    others_mwt = max(0, view.pool_mwt - view.member_mwt) + max(0, len(running) - len(mine)) * view.mean_mwt
    known = [
        lengths for lengths in (model.lengths.get(job.tenant, Lengths()), view.pool.lengths) if lengths.n >= MIN_ANSWERS
    ]
    usual_mwt = 1_000 * job.prompt_tokens + job.weight_milli * max(1, known[0].mean(math.inf) if known else 128)
    all_paused = sum(other.paused_since_ms > 0 for other in running)
    return SlotView(
        rates.mu_wtps,
        slots,
        model.quantum_ms,
        share,
        first,
        ahead,
        pool.owners,
        min(lead_ms, others_mwt / rates.mu_wtps),
        len(mine),
        len(mine) * usual_mwt,
        view.member_mwt / max(1, view.waiting_here),
        view.mean_mwt,
        others_mwt,
        all_paused >= most_paused(model, job.slug, slots) and not any(other.paused_since_ms for other in mine),
    )
