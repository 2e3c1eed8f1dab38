"""Crashes in the reference model: a job whose workers crash in company runs with fewer and fewer others."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model

FREE_CRASHES, MAX_PARDONS = 2, 16


def jobs_on(model: "Model", worker: str) -> list[ModelJob]:
    """Return the running jobs of a worker, in the order in which their leases end."""
    mine = [job for job in model.inflight() if job.state == "running" and job.worker == worker]
    return sorted(mine, key=lambda job: (job.lease_ms, job.id))


def is_silent(model: "Model", worker: str) -> bool:
    """Return whether the worker has sent no heartbeat for as long as a lease."""
    known = model.workers.get(worker)
    return known is None or known.heartbeat_ms <= model.now_ms - model.lease_ms


def note_crash(model: "Model", jobs: Sequence[ModelJob]) -> None:
    """Note for the jobs of a crashed worker that they ran together. A job that ran alone has used up an attempt."""
    if len(jobs) < 2 or model.max_attempts < 2:
        return
    for job in jobs:
        job.pardons = min(job.pardons + 1, MAX_PARDONS)
        if job.pardons >= FREE_CRASHES:
            job.company = -(-min(job.company or len(jobs), len(jobs)) // 2)


def most_beside(jobs: Iterable[ModelJob]) -> float:
    """Return how many jobs may run together because of the company of one of them."""
    return min((job.company for job in jobs if job.company), default=float("inf"))
