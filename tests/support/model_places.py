"""The places of the reference model: how many jobs each pool may have inflight, and who may use the last quarter.

They follow from the live workers, which are counted here too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.model import Model
    from tests.support.model_admission import AdmissionView
    from tests.support.model_records import ModelWorker

LIVE_MS = 5_000


def live_workers(model: "Model", slug: str) -> list["ModelWorker"]:
    return [w for w in model.workers.values() if w.slug == slug and model.now_ms - w.heartbeat_ms <= LIVE_MS]


def live_pools(model: "Model") -> set[str]:
    heard = {worker.slug for worker in model.workers.values() if model.now_ms - worker.heartbeat_ms <= LIVE_MS}
    return {slug for slug in heard if model.pools[slug].slots > 0}


def count_workers(model: "Model", reported: str = "") -> None:
    """Recompute the slots, rates and places of all pools; a worker of the pool `reported` has just sent a heartbeat."""
    live = [worker for worker in model.workers.values() if model.now_ms - worker.heartbeat_ms <= LIVE_MS]
    model.slots_at_last_count = sum(worker.slots for worker in live)
    for slug in {worker.slug for worker in model.workers.values()}:
        pool, rates = model.pools[slug], [worker.rates for worker in live if worker.slug == slug]
        pool.slots = sum(worker.slots for worker in live if worker.slug == slug)
        if slug == reported:
            pool.generated_weight.follow(rates, model.now_ms, is_new=pool.mean_mwt is None)
        pool.update_places(pool.generated_weight.mu_wtps(rates), model.max_wait_ms, reported=slug == reported)
        pool.update_rates(rates, model.now_ms if slug == reported else None)


def live_places(model: "Model") -> int:
    """Return how many jobs all pools together can work off in time."""
    return sum(pool.places for pool in model.pools.values())


def places_in_pool(view: "AdmissionView") -> int:
    """Return how many jobs the pool of the offered job may have inflight, given the jobs of the other pools."""
    model, slug = view.model, view.job.slug
    bound = model.max_inflight or max(64, 4 * model.slots_at_last_count, live_places(model))
    left = bound - (view.inflight - view.pool_inflight)
    others = [other for other in live_pools(model) if other != slug]
    if not others or bound <= len(others):
        return left

    def kept(pool: str) -> int:
        return max(1, bound * model.pools[pool].slots // model.slots_at_last_count)

    jobs = {other: sum(job.slug == other for job in view.left) for other in others}
    free = sum(max(0, kept(other) - jobs[other]) for other in others)
    empty = sum(jobs[other] == 0 for other in others)
    first = min(1, left) if view.pool_inflight == 0 else 0
    return max(left - free, min(kept(slug), left - empty), first)


def check_inflight(view: "AdmissionView") -> str | None:
    """Keep the last quarter of the pool's places for tenants that have few jobs queued there.

    They have none, or less than their share of the work and fewer jobs than their share of that quarter.
    """
    places = max(0, places_in_pool(view))
    kept = places // 4 if view.model.full else 0
    little = view.own_mwt * view.weights < view.weight * view.pool_mwt
    few = len(view.own_here) * view.weights < view.weight * kept
    if view.idle or (not view.is_batch and (not view.own_here or (little and few))):
        kept = 0
    return "inflight_full" if view.pool_inflight >= places - kept else None
