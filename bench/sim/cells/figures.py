"""The figures of a run of many cells: refusals, waits, spills, misses, load by cell, fairness, and what a loss cost."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.sim.cells.cases import ACTS_MS, BACK_MS, GROWER, LOST_MS, WARM_UP_S, Case
from bench.sim.cells.deployment import Deployed, Request
from bench.sim.cells.doors import Doors
from bench.sim.ledger import Window, computed_wtps, percentile

Figures = dict[str, Any]


def figures(case: Case, deployed: Deployed, capacity_wtps: float) -> Figures:
    """Return all figures of a run. `capacity_wtps` is that of one worker."""
    window = Window(1_000.0 * WARM_UP_S, 1_000.0 * case.sends_s)
    requests = [request for request in deployed.requests if window.holds(request.job.at_ms)]
    got = (
        answers(requests)
        | _loads(case, deployed, capacity_wtps, window)
        | {"fairness": _fairness(case, deployed)}
        | audit(deployed)
    )
    if case.lost:
        got["loss"] = _loss(case, requests)
    if case.grows_to:
        got["growth"] = _growth(case, requests)
    jobs = sum(len(cell.arrivals) for cell in deployed.cells.values())
    store_cpu_s = sum(cell.store_cpu_s() for cell in deployed.cells.values())
    return got | {"store_cpu_ms_per_job": 1_000 * store_cpu_s / jobs}


def answers(requests: Sequence[Request]) -> Figures:
    """Return how these requests ended, as parts of their number. A miss is an admitted job whose answer was late."""
    count = max(1, len(requests))
    refused = [request for request in requests if request.admitted is None]
    admitted = [job for request in requests if (job := request.admitted) is not None]
    waits = [job.first_token_ms - job.at_ms for job in admitted if job.first_token_ms is not None]
    light = [request.in_time for request in requests if request.job.light]
    return {
        "requests": len(requests),
        "in_time": sum(request.in_time for request in requests) / count,
        "refused": len(refused) / count,
        "reasons": dict(Counter(request.reason for request in refused).most_common()),
        "misses": sum(not job.in_time for job in admitted) / max(1, len(admitted)),
        "spilled": sum(request.spilled for request in requests) / count,
        "spilled_admitted": sum(request.spilled and request.admitted is not None for request in requests) / count,
        "wait_p50_ms": percentile(waits, 0.5),
        "wait_p99_ms": percentile(waits, 0.99),
        "light_in_time": sum(light) / max(1, len(light)),
    }


def audit(deployed: Deployed) -> Figures:
    """Return the requests that were lost or doubled, and the invariants that stores breach: all should be 0.

    Lost: offered, but neither refused by every cell nor ended. Doubled: admitted by two cells, or ended twice.
    """
    lost = doubled = 0
    for request in deployed.requests:
        jobs = [job for _, job in request.offers]
        admitted = [job for job in jobs if job.admitted_ms is not None]
        lost += not request.reason and not admitted
        lost += sum(not job.outcome for job in admitted)
        lost += sum(job.admitted_ms is None and job.gave_up_ms is None for job in jobs)
        doubled += len(admitted) > 1
    for cell in deployed.cells.values():
        doubled += sum(count > 1 for count in cell.system.ends.values())
    breaches = sum(len(cell.breaches()) for cell in deployed.cells.values())
    return {"lost": lost, "doubled": doubled, "breaches": breaches}


def in_time_by_interval(requests: Sequence[Request], seconds: int, width: int = 5) -> list[float | None]:
    """Return the part of the requests that was answered in time, by the interval of `width` seconds of the send."""
    sent, in_time = [0] * (seconds // width), [0] * (seconds // width)
    for request in requests:
        interval = int(request.job.at_ms // (1_000 * width))
        if interval < len(sent):
            sent[interval] += 1
            in_time[interval] += request.in_time
    return [good / count if count else None for good, count in zip(in_time, sent, strict=True)]


def _loads(case: Case, deployed: Deployed, capacity_wtps: float, window: Window) -> Figures:
    offered_wt: Counter[str] = Counter()
    for request in deployed.requests:
        if request.offers and window.holds(request.job.at_ms):
            offered_wt[request.offers[0][0]] += request.job.cost_wt
    offered, done = {}, {}
    for cell in case.cells:
        full_wtps = capacity_wtps * cell.workers
        offered[cell.name] = offered_wt[cell.name] / window.seconds / full_wtps
        done[cell.name] = computed_wtps(deployed.runs[cell.name], window) / full_wtps
    return {
        "offered": offered,
        "load": done,
        "offered_max_by_mean": max(offered.values()) * len(offered) / sum(offered.values()),
        "load_max_by_mean": max(done.values()) * len(done) / sum(done.values()),
        "hottest": max(offered, key=lambda name: offered[name]),
        "over_capacity": sum(part > 1 for part in offered.values()),
    }


def _fairness(case: Case, deployed: Deployed) -> Figures:
    """Return the largest difference in service of two tenants with queued jobs, by its bound, in the worst cell.

    A cell that was lost is left out: its jobs run twice.
    """
    worst = {
        name: cell.services.worst() / cell.services.bound_wt
        for name, cell in deployed.cells.items()
        if name not in case.lost and cell.services.bound_wt
    }
    cell = max(worst, key=lambda name: worst[name])
    return {"worst_by_bound": worst[cell], "cell": cell}


def _loss(case: Case, requests: Sequence[Request]) -> Figures:
    doors = Doors(case.directory)
    homes = {request: doors.cells_of(request.job.tenant, _home_region(case, request))[0] for request in requests}
    hit = [request for request in requests if homes[request] in case.lost]
    others = [request for request in requests if homes[request] not in case.lost]
    after = [request for request in hit if LOST_MS <= request.job.at_ms < BACK_MS]
    before = [request for request in hit if request.job.at_ms < LOST_MS]
    running = [
        job
        for request in before
        if (job := request.admitted) is not None and (job.ended_ms is None or job.ended_ms >= LOST_MS)
    ]
    firsts: dict[str, Request] = {}
    for request in after:
        firsts.setdefault(request.job.tenant, request)
    gaps_ms = [
        job.admitted_ms - request.job.at_ms
        for request in firsts.values()
        if (job := request.admitted) is not None and job.admitted_ms is not None
    ]
    served_ms = [job.admitted_ms - LOST_MS for request in after if (job := request.admitted) and job.admitted_ms]
    return {
        "tenants": len({request.job.tenant for request in hit}),
        "tenants_asked": len(firsts),
        "tenants_served_at_once": len(gaps_ms),
        "first_served_s": min(served_ms, default=0.0) / 1_000 if served_ms else None,
        "longest_gap_s": max(gaps_ms) / 1_000 if gaps_ms else None,
        "before": answers(before),
        "while_lost": answers(after),
        "others_while_lost": answers([request for request in others if LOST_MS <= request.job.at_ms < BACK_MS]),
        "running_at_loss": len(running),
        "of_them": dict(Counter(job.outcome or "open" for job in running)),
        "in_time_by_5s": in_time_by_interval(hit, case.sends_s),
        "others_in_time_by_5s": in_time_by_interval(others, case.sends_s),
    }


def _home_region(case: Case, request: Request) -> str:
    """Return the region at whose doors the tenant arrives when nothing is lost."""
    return case.region_of.get(request.job.tenant, request.region)


def _growth(case: Case, requests: Sequence[Request]) -> Figures:
    own = [request for request in requests if request.job.tenant == GROWER]
    others = [request for request in requests if request.job.tenant != GROWER]
    home = Doors(case.directory).cells_of(GROWER)[0]
    doors = Doors(case.directory)
    beside = [request for request in others if doors.cells_of(request.job.tenant)[0] == home]
    # The queues of the time before the change have ended some seconds after it.
    settled_ms = ACTS_MS + 10_000
    return {
        "home": home,
        "own_after": answers([request for request in own if request.job.at_ms >= settled_ms]),
        "beside_after": answers([request for request in beside if request.job.at_ms >= settled_ms]),
        "own_in_time_by_5s": in_time_by_interval(own, case.sends_s),
        "beside_in_time_by_5s": in_time_by_interval(beside, case.sends_s),
    }
