"""The bytes of the reference model: what a tenant's jobs take in the store, and when the ended ones expire."""

import hashlib
import math
from typing import TYPE_CHECKING

from tests.support.model_records import ModelJob

if TYPE_CHECKING:
    from tests.support.model import Model
    from tests.support.model_admission import AdmissionView

EVENTS_TTL_S = 60
#: A hint is from 50 ms to a minute; one for a minute or more is spread over the last ten seconds of the minute.
HINT_MIN_MS, CAPPED_MIN_MS, HINT_MAX_MS = 50, 50_000, 60_000
#: The number of periods into which the time that results are kept is divided.
PERIODS = 32
#: The estimated bytes of each part of a job: its records, the key of a name, an entry of its event stream.
RECORD_BYTES, NAME_BYTES, ENTRY_BYTES = 2_500, 250, 90
#: The metadata and the form of a job of the state machine, each `{}`.
EMPTY_BYTES = 4


def fixed_bytes(job: ModelJob) -> int:
    """Return the bytes of the job's record, without its payload and its result."""
    return RECORD_BYTES + EMPTY_BYTES + NAME_BYTES * bool(job.supersede_key)


def inflight_bytes(job: ModelJob) -> int:
    """Return the bytes of a queued or running job, with those that its answer may take; 0 if it has ended."""
    return offered_bytes(job) if job.state in {"queued", "running"} else 0


def offered_bytes(job: ModelJob) -> int:
    """Return what the job takes if it is admitted, until it ends."""
    return fixed_bytes(job) + job.payload_bytes + job.answer_bytes


def keep_ended(job: ModelJob, now_ms: int, result_bytes: int, result_ttl_s: int) -> None:
    """Note the bytes of an ended job's record and result, those of its event stream, and when each part expires."""
    period_s = math.ceil(result_ttl_s / PERIODS)
    texts_bytes = result_bytes if job.entries > 1 else 0
    parts = [(result_ttl_s, fixed_bytes(job) + result_bytes), (EVENTS_TTL_S, ENTRY_BYTES * job.entries + texts_bytes)]
    job.result_bytes, job.readable_until_ms = result_bytes, now_ms + 1_000 * result_ttl_s
    job.kept = [(math.ceil((now_ms / 1_000 + ttl_s) / period_s) * period_s, size) for ttl_s, size in parts]


def erase_result(job: ModelJob) -> bool:
    """Erase the result of an ended job; return whether there was one."""
    if job.state in {"queued", "running"} or not job.result_bytes:
        return False
    (end_s, size), events = job.kept
    job.kept, job.result_bytes = [(end_s, size - job.result_bytes), events], 0
    return True


def expire_jobs(model: "Model") -> list[str]:
    """Remove the jobs that can no longer be read; return their ids. Their bytes count until the end of a period."""
    ended = [job for job in model.jobs.values() if job.readable_until_ms]
    late = [model.jobs.pop(job.id) for job in ended if job.readable_until_ms <= model.now_ms]
    model.expired += late
    return [job.id for job in late]


def jobs_of(model: "Model", tenant: str) -> list[ModelJob]:
    """Return the tenant's jobs, with those that can no longer be read."""
    return [job for job in (*model.jobs.values(), *model.expired) if job.tenant == tenant]


def periods(jobs: list[ModelJob], now_ms: int) -> dict[int, int]:
    """Return the bytes of ended jobs by the time in s at which they expire, without those that have expired."""
    found: dict[int, int] = {}
    for end_s, size in [part for job in jobs for part in job.kept]:
        if end_s * 1_000 > now_ms:
            found[end_s] = found.get(end_s, 0) + size
    return found


def check_bytes(view: "AdmissionView") -> str | None:
    """Refuse a job for which its tenant has no bytes left; a tenant that takes none is admitted with any job."""
    model, job = view.model, view.job
    mine = jobs_of(model, job.tenant)
    bound = model.max_bytes_of[job.tenant]
    taken = sum(periods(mine, model.now_ms).values()) + sum(map(inflight_bytes, mine))
    if view.older is not None and view.older.state == "queued":
        # Only its record stays.
        taken -= inflight_bytes(view.older) - fixed_bytes(view.older)
    return "tenant_bytes_full" if bound and taken and taken + offered_bytes(job) > bound else None


def bytes_hint_ms(view: "AdmissionView") -> int:
    """Return the hint of a refusal for bytes: until the first bytes expire, or until the tenant's share ends a job."""
    model, job = view.model, view.job
    if expiring := periods(jobs_of(model, job.tenant), model.now_ms):
        base_ms: float = min(expiring) * 1_000 - model.now_ms
    elif view.rates:
        mean_mwt = job.cost_mwt if view.pool.mean_mwt is None else view.pool.mean_mwt
        base_ms = mean_mwt / view.rates.mu_wtps * (view.weights / view.weight)
    else:
        base_ms = 1_000 if view.pool.run_ms is None else view.pool.run_ms / max(1, view.pool.slots)
    spread = int(hashlib.sha1(job.id.encode(), usedforsecurity=False).hexdigest()[:4], 16) / 65_536
    if math.ceil(base_ms) >= HINT_MAX_MS:
        shortest_ms = base_ms if base_ms < HINT_MAX_MS else CAPPED_MIN_MS
        return math.floor(shortest_ms + spread * (HINT_MAX_MS - shortest_ms))
    longer_ms = min(0.2 * base_ms, HINT_MAX_MS - base_ms)
    return max(HINT_MIN_MS, min(HINT_MAX_MS, math.ceil(base_ms + spread * longer_ms)))
