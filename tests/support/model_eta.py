"""Predictions in the reference model: how long a job waits, by the formula and by what earlier waits taught."""

import math
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model
    from tests.support.model_admission import AdmissionView
    from tests.support.model_books import Rates

FLOOR_MS = 50
MINUTE_MS = 60_000


def least_service(model: "Model", tenant: str, slug: str) -> float:
    """Return the least service at which a newcomer starts: the virtual time, less two mean jobs if it is known."""
    pool = model.pools[slug]
    first_ms = model.first_ms.get(tenant, model.now_ms)
    known = first_ms is None or model.now_ms - first_ms > MINUTE_MS
    if known and model.full and model.fairness == "tokens" and pool.mean_mwt is not None:
        return max(0, pool.virtual - 2 * pool.mean_mwt)
    return pool.virtual


def score_of(view: "AdmissionView") -> float:
    """Return the tenant's service in the pool, or that with which it would enter the active set."""
    model, job = view.model, view.job
    own = model.service[job.tenant, job.slug]
    if job.tenant in model.turns(job.slug):
        return own
    return max(own, least_service(model, job.tenant, job.slug))


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
    latest_ms = model.now_ms + latest_in_ms(view, rates)
    sooner = sum(other.latest_ms < latest_ms for other in model.waiting(job.tenant, job.slug))
    return min(view.waiting_here, sooner)


def class_of(view: "AdmissionView", rates: "Rates") -> str:
    """Return the class of jobs for which one correction is learned."""
    if view.idle:
        return "i"
    if view.waiting_here == 0:
        return "n"
    if rank_of(view, rates) == 0:
        return "h"
    return f"b{math.floor(math.log(max(1, latest_in_ms(view, rates))) / math.log(2))}"


def work_before(view: "AdmissionView", rank: int) -> float:
    """Return the work that is leased before the job: of its tenant, and of tenants that get ahead meanwhile."""
    model, job = view.model, view.job
    turns = model.fairness == "turns"
    mean_mwt = job.cost_mwt if view.pool.mean_mwt is None else view.pool.mean_mwt
    own_mwt = view.own_mwt * (rank / max(1, view.waiting_here))
    own_service = 1_000 * rank if turns else own_mwt
    score, active = score_of(view), model.turns(job.slug)
    services = [model.service[tenant, job.slug] for tenant in active]
    lag = max((score - min(services, default=score)) / 2, (1_000 if turns else mean_mwt) / 2)
    ahead = sum(service < score for service in services)
    mean_weight = view.weights / 1_000 / max(1, len(active))
    others = ahead * mean_weight * lag + (view.weights - view.weight) / view.weight * own_service
    return own_mwt + min(max(0, view.pool_mwt - view.own_mwt), (mean_mwt / 1_000 if turns else 1) * others)


def formula_ms(view: "AdmissionView", rates: "Rates") -> float:
    """Return the wait by the formula alone."""
    if view.idle:
        return 0.0
    slot_ms = (view.pool.run_ms or 0) / max(1, view.pool.slots)
    return work_before(view, rank_of(view, rates)) / rates.mu_wtps + slot_ms


def predicted_wait_ms(view: "AdmissionView", rates: "Rates") -> float:
    """Return the wait by the formula, corrected by what was learned for the job's class."""
    if view.idle:
        return 0.0
    learned = math.exp(view.pool.learned[class_of(view, rates)] / 1_000)
    return max(0, (formula_ms(view, rates) + FLOOR_MS) * learned - FLOOR_MS)


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
