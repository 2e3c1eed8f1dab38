"""Predictions in the reference model: the formula for a job's wait, and the factors learned from earlier waits."""

import math
from typing import TYPE_CHECKING

from tests.support import model_turns
from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model
    from tests.support.model_admission import AdmissionView
    from tests.support.model_books import Rates

FLOOR_MS = 50


def score_of(view: "AdmissionView", owner: str, group: str) -> float:
    """Return the owner's service in the pool, or that with which it would enter the set."""
    model, slug = view.model, view.job.slug
    if owner in model_turns.active(model, slug, group, is_batch=view.is_batch):
        return model.turns.service[owner, slug]
    others = model_turns.active(model, slug, group)
    return model.turns.entry(owner, slug, group, model_turns.newcomers_credit_mwt(model, owner, slug), others)


def latest_in_ms(view: "AdmissionView", rates: "Rates") -> int:
    """Return the ms to the latest start, which is given or follows from the time for the prompt and the answer."""
    job, now_ms = view.job, view.model.now_ms
    return (
        job.latest_ms - now_ms
        if job.latest_ms >= 0
        else max(0, math.floor(job.deadline_ms - now_ms - view.whole_ms(rates)))
    )


def rank_of(view: "AdmissionView", rates: "Rates") -> int:
    """Return how many of the tenant's queued jobs start sooner; a job to be superseded is still in its queue."""
    model, job = view.model, view.job
    place = -job.priority, model.now_ms + latest_in_ms(view, rates)
    sooner = sum((-other.priority, other.latest_ms) < place for other in model.waiting(job.tenant, job.slug))
    return min(view.waiting_here, sooner)


def class_of(view: "AdmissionView", rates: "Rates") -> str:
    """Return the class of jobs for which one correction is learned."""
    if view.idle:
        return "i"
    if view.slots is not None and view.slots.is_early(rank_of(view, rates)):
        return "s"
    if view.is_batch:
        return "l"
    if view.waiting_here == 0:
        return "n"
    if rank_of(view, rates) == 0:
        return "h"
    return f"b{math.floor(math.log(max(1, latest_in_ms(view, rates))) / math.log(2))}"


def work_before(view: "AdmissionView", rank: int) -> float:
    """Return the work that is leased before the job: of its tenant, of its group, and of others that get ahead."""
    tenant, slug, jobs = view.job.tenant, view.job.slug, float(rank)
    mwt = view.member_mwt * (rank / max(1, view.waiting_here))
    if view.unit != tenant:
        members = model_turns.active(view.model, slug, view.unit, is_batch=view.is_batch)
        own_mwt, others = mwt, len(members) - bool(view.waiting_here)
        weight = view.model.weights_milli.get(tenant, 1_000)
        weights = weight, weight * (1 + max(0, others))
        mwt = work_in_set(view, (tenant, view.unit), (mwt, jobs), view.own_mwt - view.member_mwt, weights)
        jobs += (mwt - own_mwt) / max(1, view.mean_mwt)
    mwt = work_in_set(view, (view.unit, ""), (mwt, jobs), view.pool_mwt - view.own_mwt, (view.weight, view.weights))
    return min(view.pool_mwt, view.main_mwt + mwt) if view.is_batch else mwt


def work_in_set(
    view: "AdmissionView",
    owner: tuple[str, str],
    own: tuple[float, float],
    other_mwt: float,
    weights: tuple[int, int],
) -> float:
    """Return the work that is leased while some jobs of an owner get their turns in its set.

    `owner` is its name and the group whose set it is in, `own` the cost and the number of these jobs, and `weights` the
    owner's weight and the sum of those in the set.
    """
    model, slug, (mwt, jobs), (weight, total) = view.model, view.job.slug, own, weights
    turns = model.fairness == "turns"
    own_service = 1_000 * jobs if turns else mwt
    score, active = score_of(view, *owner), model_turns.active(model, slug, owner[1], is_batch=view.is_batch)
    services = [model.turns.service[name, slug] for name in active]
    mean_service = 1_000 if turns else view.mean_mwt
    lag = max((score - min(services, default=score)) / 2 + mean_service / 2, mean_service)
    ahead = sum(service < score for service in services)
    mean_weight = (total - weight) / 1_000 / max(1, len(active) - (owner[0] in active))
    others = ahead * mean_weight * lag + (total - weight) / weight * own_service
    return mwt + min(max(0, other_mwt), (view.mean_mwt / 1_000 if turns else 1) * others)


def formula_ms(view: "AdmissionView", rates: "Rates") -> float:
    """Return the wait by the formula alone."""
    if view.idle:
        return 0.0
    if view.slots is not None:
        return min(view.most_ms(rates), view.slots.wait_ms(rank_of(view, rates)))
    wait_ms = work_before(view, rank_of(view, rates)) / rates.mu_wtps + view.slot_ms()
    return min(view.most_ms(rates), wait_ms)


def predicted_wait_ms(view: "AdmissionView", rates: "Rates") -> float:
    """Return the wait by the formula, corrected by the factor that was learned for the job's class."""
    if view.idle:
        return 0.0
    learned = math.exp(view.pool.learned[class_of(view, rates)] / 1_000)
    return max(0, min(view.most_ms(rates), (formula_ms(view, rates) + FLOOR_MS) * learned - FLOOR_MS))


def note_wait(model: "Model", job: ModelJob) -> int:
    """Learn from the job's first wait if it was predicted. Return how long the job was queued for this claim."""
    if job.prediction and not job.was_claimed:
        predicted_ms, name = job.prediction
        learned = model.pools[job.slug].learned
        error = (
            1_000 * math.log((model.now_ms - job.admitted_ms + FLOOR_MS) / (predicted_ms + FLOOR_MS)) - learned[name]
        )
        if name != "i":
            step = max(-100, min(100, error / 5))
            learned[name] = max(-3_000, min(3_000, math.floor(learned[name] + step + 0.5)))
    job.was_claimed = True
    return model.now_ms - job.waits_from_ms


def doubt_wait(view: "AdmissionView") -> None:
    """Lower the class's correction if the refused job would have been admitted without it."""
    rates = view.rates
    assert rates is not None
    learned_ms = predicted_wait_ms(view, rates) - max(formula_ms(view, rates), view.share_ms(rates))
    if view.late_by_ms(rates) <= learned_ms:
        learned, name = view.pool.learned, class_of(view, rates)
        learned[name] -= min(20, max(0, learned[name]))
