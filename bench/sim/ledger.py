"""Computes the figures of a run: useful work, waste, success by tenant, and refusals."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bench.sim.asks import SimJob
from bench.sim.simulation import Run


@dataclass(frozen=True)
class Window:
    """The judged part of a run, in ms. The time before it is warm-up."""

    begin_ms: float
    end_ms: float

    def holds(self, moment_ms: float | None) -> bool:
        """Return whether this time lies within the window; False for None."""
        return moment_ms is not None and self.begin_ms <= moment_ms < self.end_ms

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return (self.end_ms - self.begin_ms) / 1_000


def useful_wtps(run: Run, window: Window) -> float:
    """Return the weighted tokens per second of answers that were ready in time."""
    return sum(job.cost_wt for job in run.jobs if job.in_time and window.holds(job.ended_ms)) / window.seconds


def computed_wtps(run: Run, window: Window) -> float:
    """Return all weighted tokens per second that the workers computed, useful or not."""
    totals = [0, *run.computed_by_s]
    begin, end = int(window.begin_ms // 1_000), min(int(window.end_ms // 1_000), len(totals) - 1)
    return (totals[end] - totals[begin]) / max(1, end - begin)


def waste(run: Run, window: Window) -> float:
    """Return the share of the work for ended jobs that was done for answers that were not ready in time."""
    ended = [job for job in run.jobs if window.holds(job.ended_ms)]
    total = sum(job.computed_wt for job in ended)
    return sum(job.computed_wt for job in ended if not job.in_time) / total if total else 0.0


def judged(run: Run, window: Window, sent_until_ms: float | None = None) -> list[SimJob]:
    """Return the jobs first sent in the window that ended, gave up or passed their deadline before the run's end.

    With `sent_until_ms`, return all jobs first sent in the window before that time. A job whose client still waits for
    a retry counts as not answered.
    """
    end_ms = run.seconds * 1_000
    if sent_until_ms is not None:
        return [job for job in run.jobs if window.begin_ms <= job.at_ms < sent_until_ms]
    return [job for job in run.jobs if window.holds(job.at_ms) and (_decided(job) or job.deadline_at_ms <= end_ms)]


def success(jobs: Iterable[SimJob]) -> float:
    """Return the share of the jobs that was answered in time, or 1 without jobs."""
    in_time = [job.in_time for job in jobs]
    return sum(in_time) / len(in_time) if in_time else 1.0


def percentile(values: Iterable[float], share: float) -> float:
    """Return the nearest-rank percentile, or NaN if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def first_token_waits(jobs: Iterable[SimJob]) -> list[float]:
    """Return the ms from the send to the first token, for all jobs that have a first token."""
    return [job.first_token_ms - job.sent_ms for job in jobs if job.first_token_ms is not None]


def residences_ms(jobs: Iterable[SimJob]) -> list[float]:
    """Return the ms from claim to end, for all jobs that were answered in time."""
    return [
        job.ended_ms - job.claimed_ms for job in jobs if job.in_time and job.ended_ms and job.claimed_ms is not None
    ]


def jain(values: list[float]) -> float:
    """Return Jain's index: 1 if all values are equal, 1/n if one of n values is the only one above 0."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def summary(run: Run, window: Window, capacity_wtps: float, sent_until_ms: float | None = None) -> dict[str, Any]:
    """Return the figures that several experiments share: work, waste, success and refusals."""
    jobs = judged(run, window, sent_until_ms)
    light = [job for job in jobs if job.light]
    heavy = [job for job in jobs if not job.light]
    return {
        "useful": useful_wtps(run, window) / capacity_wtps,
        "computed": computed_wtps(run, window) / capacity_wtps,
        "busy": sum(worker.busy_ms for worker in run.workers) / (1_000 * run.seconds * len(run.workers)),
        "waste": waste(run, window),
        "light_success": success(light),
        "light_jobs": len(light),
        "heavy_success": success(heavy),
        "success": success(jobs),
        "asked_per_s": len([a for a in run.jobs if window.holds(a.at_ms)]) / window.seconds,
        "refused": sum(1 for job in jobs if job.gave_up_ms is not None) / max(1, len(jobs)),
        "refusals": dict(Counter(job.refusal for job in jobs if job.gave_up_ms is not None).most_common()),
        "light_refusals": dict(Counter(job.refusal for job in light if job.gave_up_ms is not None).most_common()),
        "ends": dict(_outcomes(jobs)),
        "light_ttft_p99_ms": percentile(first_token_waits(light), 0.99),
        "ttft_p50_ms": percentile(first_token_waits(jobs), 0.5),
        "ttft_p99_ms": percentile(first_token_waits(jobs), 0.99),
        "attempts_per_job": sum(job.attempts for job in jobs) / max(1, len(jobs)),
        "tenants": _tenants(jobs, window),
    }


def _decided(job: SimJob) -> bool:
    return bool(job.outcome) or job.gave_up_ms is not None


def _outcomes(jobs: Iterable[SimJob]) -> Counter[str]:
    """Count the outcomes of the jobs whose clients did not give up. Jobs without an outcome count as `open`."""
    return Counter(job.outcome or "open" for job in jobs if job.gave_up_ms is None)


def _tenants(jobs: list[SimJob], window: Window) -> dict[str, dict[str, float]]:
    """Return for each tenant: number of jobs, share in time, share refused, useful wt/s."""
    by_tenant: dict[str, list[SimJob]] = {}
    for job in jobs:
        by_tenant.setdefault(job.tenant, []).append(job)
    return {
        tenant: {
            "jobs": len(own),
            "success": success(own),
            "refused": sum(1 for job in own if job.gave_up_ms is not None) / len(own),
            "useful_wtps": sum(job.cost_wt for job in own if job.in_time) / window.seconds,
        }
        for tenant, own in sorted(by_tenant.items())
    }
