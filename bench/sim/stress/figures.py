"""The figures of a scenario's run: work, success, kept promises, predictions against what happened, returns."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bench.sim.asks import SimJob
from bench.sim.ledger import Window, judged, percentile, success, useful_wtps, waste
from bench.sim.simulation import Run

#: A return counts as that of an obedient client if it comes at most this part of the hint after the hint.
RETURN_SLACK = 0.2
#: A predicted start is right within this time, or within this part of the real wait.
START_SLACK_MS, START_SLACK = 500.0, 0.25


def figures(run: Run, window: Window, capacity_wtps: Mapping[str, float]) -> dict[str, Any]:
    """Return all figures of a run. Work is relative to the capacity of all models together."""
    jobs = judged(run, window)
    light = [job for job in jobs if job.light]
    refused = [job for job in jobs if job.gave_up_ms is not None]
    return {
        "useful": useful_wtps(run, window) / sum(capacity_wtps.values()),
        "light": success(light),
        "light_jobs": len(light),
        "success": success(jobs),
        "waste": waste(run, window),
        "kept": success(promised(jobs)),
        "promised": len(promised(jobs)),
        "worst_tenant": min(_by_tenant(jobs), default=1.0),
        "attempts_per_job": sum(job.attempts for job in jobs) / max(1, len(jobs)),
        "refusals": dict(Counter(job.refusal for job in refused).most_common()),
        "light_misses": dict(Counter(_miss(job) for job in light if not job.in_time).most_common()),
        "broken": dict(Counter(_miss(job) for job in promised(jobs) if not job.in_time).most_common()),
        "models": {
            model: {
                "useful": useful_wtps(Run([job for job in run.jobs if job.model == model], [], run.seconds), window)
                / capacity_wtps[model],
                "light": success(job for job in light if job.model == model),
                "success": success(job for job in jobs if job.model == model),
            }
            for model in capacity_wtps
        },
        "groups": _by_group(run, window),
        **predictions(jobs),
        **returns(jobs),
    }


def promised(jobs: Iterable[SimJob]) -> list[SimJob]:
    """Return the admitted jobs whose clients stayed. A promise is kept if the job is answered in time."""
    return [job for job in jobs if job.admitted_ms is not None and not job.gone]


def predictions(jobs: Iterable[SimJob]) -> dict[str, Any]:
    """Return by how many ms jobs started and ended later than predicted at admission: percentiles 10, 50, 90 and 95.

    An expired job ended no earlier than at its deadline, so its error is a lower bound.
    """
    jobs = list(jobs)
    started = [job for job in jobs if job.predicted_start_ms is not None and job.first_token_ms is not None]
    if not started:
        return {}
    starts = [(job.first_token_ms - job.predicted_start_ms, job.first_token_ms - job.sent_ms) for job in started]  # type: ignore[operator]  # chosen above
    ends = [
        job.ended_ms - job.predicted_end_ms  # type: ignore[operator]  # a start is predicted together with an end
        for job in started
        if job.ended_ms is not None
    ]
    close = [abs(error) <= max(START_SLACK_MS, START_SLACK * wait) for error, wait in starts]
    return {
        "start_late_ms": {f"p{p}": percentile([error for error, _ in starts], p / 100) for p in (10, 50, 90, 95)},
        "end_late_ms": {f"p{p}": percentile(ends, p / 100) for p in (10, 50, 90, 95)},
        "start_close": sum(close) / len(close),
        **_intervals(jobs),
    }


def _intervals(jobs: Iterable[SimJob]) -> dict[str, float]:
    """Return the share of jobs that ended in the predicted interval, and its median width in ms.

    An expired job ends at its deadline, which is also the latest time at which an interval can end.
    """
    ended = [
        (min(job.ended_ms, job.deadline_at_ms), job.predicted_interval_ms)
        for job in jobs
        if job.predicted_interval_ms and job.ended_ms is not None
    ]
    inside = [early_ms - 1 <= end_ms <= late_ms + 1 for end_ms, (early_ms, late_ms) in ended]
    widths = [late_ms - early_ms for _, (early_ms, late_ms) in ended]
    return {"end_inside": sum(inside) / max(1, len(inside)), "end_width_ms": percentile(widths, 0.5)}


def returns(jobs: Iterable[SimJob]) -> dict[str, float]:
    """Return the share of refusals that asked to come back, and of punctual first returns the share admitted."""
    first_refused = [job for job in jobs if job.refusal]
    told = [job for job in first_refused if job.first_hint_ms is not None]
    punctual = [
        job
        for job in told
        if job.returned_ms is not None
        and 0 <= job.returned_ms - job.at_ms - job.first_hint_ms <= RETURN_SLACK * job.first_hint_ms  # type: ignore[operator]  # told
    ]
    if not punctual:
        return {}
    return {
        "told": len(told) / len(first_refused),
        "returns": len(punctual),
        "returns_admitted": sum(job.return_admitted for job in punctual) / len(punctual),
        "attempts_per_told": sum(job.attempts - 1 for job in told) / len(told),
    }


def _miss(job: SimJob) -> str:
    """Return why a job was not answered in time: its last refusal, or where and how it ended."""
    if job.gave_up_ms is not None or job.admitted_ms is None:
        return job.refusal or "never admitted"
    return f"{job.outcome or 'open'} {'queued' if job.claimed_ms is None else 'running'}"


def _by_tenant(jobs: Iterable[SimJob]) -> list[float]:
    by_tenant: dict[str, list[SimJob]] = {}
    for job in jobs:
        by_tenant.setdefault(job.tenant, []).append(job)
    return [success(own) for own in by_tenant.values() if len(own) >= 20]


def _by_group(run: Run, window: Window) -> dict[str, float]:
    """Return each group's part of all useful work, if there are groups."""
    work: Counter[str] = Counter()
    for job in run.jobs:
        if job.in_time and window.holds(job.ended_ms):
            work[job.group] += job.cost_wt
    return {group: wt / work.total() for group, wt in work.items() if group}
