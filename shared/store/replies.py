"""What the store answers: one small type per script, so that no caller counts fields."""

from dataclasses import dataclass, field
from enum import StrEnum

from shared.jobs.job import JobView
from shared.jobs.outcomes import Outcome, Refused


@dataclass(frozen=True)
class Admitted:
    """The job is taken for good. `again` when this id (or Idempotency-Key) had been admitted before."""

    id: str
    again: bool
    position: int
    inflight: int
    #: Only with `again`: the door has taken it back since, because nobody had heard of it. It will not run.
    taken_back: bool = False


@dataclass(frozen=True)
class Quote:
    """What a job would cost and when it would end; `refused` is the verdict it would get, None for admission."""

    cost_mwt: int
    eta_ms: int | None
    refused: Refused | None


@dataclass(frozen=True)
class IdempotencyMismatch:
    """The Idempotency-Key is known with another body."""

    id: str


class SettleAnswer(StrEnum):
    """What a settle came to."""

    SETTLED = "settled"
    #: The same claim had settled before: nothing changed.
    ALREADY = "already"
    #: Another claim owns the job, or it was taken back: nothing changed.
    LOST = "lost"
    #: The store knows no such job.
    GONE = "gone"


@dataclass(frozen=True)
class Settled:
    """A settle's answer and, where it is known, how the job ended after the store's last word."""

    answer: SettleAnswer
    outcome: Outcome | None


class CancelAnswer(StrEnum):
    """What a cancel came to."""

    CANCELED = "canceled"
    REQUESTED = "requested"
    ENDED = "ended"
    GONE = "gone"


@dataclass(frozen=True)
class Beat:
    """What a worker says of itself at each renewal; shown by operators' commands, used by bounds."""

    worker: str
    model: str
    slots: int
    slots_busy: int
    cells: int
    cells_free: int
    #: Free-form figures by name (rates, device, version); plain text or numbers.
    facts: dict[str, str | int | float] = field(default_factory=dict)
    draining: bool = False


@dataclass(frozen=True)
class Renewed:
    """Which of the named jobs are no longer held, and which are to be stopped."""

    lost: list[str]
    canceled: list[str]
    #: An operator asked this worker to stop claiming.
    drain: bool
    #: RQ's record of this worker is gone (or not made yet): register again.
    unknown_to_rq: bool = False


@dataclass(frozen=True)
class Reaped:
    """What one pass of the reaper moved, and how long until something is due (None: nothing known)."""

    expired: int
    requeued: int
    failed: int
    canceled: int
    due_in_ms: int | None

    @property
    def moved(self) -> int:
        """Jobs moved in all."""
        return self.expired + self.requeued + self.failed + self.canceled


@dataclass(frozen=True)
class WorkerView:
    """One worker as its last beat left it."""

    name: str
    model: str
    live: bool
    beat_age_ms: int
    slots: int
    slots_busy: int
    cells: int
    cells_free: int
    draining: bool
    facts: dict[str, str]


@dataclass(frozen=True)
class TenantView:
    """One tenant's bounds, depth and service."""

    name: str
    weight: float
    waiting: int
    waiting_tokens: int
    max_waiting: int
    max_waiting_tokens: int
    running: int
    service_mwt: int
    oldest_age_ms: int | None


@dataclass(frozen=True)
class Snapshot:
    """One consistent picture of the whole system, for metrics, `top`, the console and doctor."""

    now_ms: int
    inflight: int
    max_inflight: int
    waiting: int
    running: int
    #: Counters and histogram buckets by field name, as shared/metrics.py reads them.
    stats: dict[str, int]
    tenants: list[TenantView]
    workers: list[WorkerView]
    models: list[str]
    draining: bool
    #: By served model, the tier of its pool, 0 for none; empty where the system does not degrade.
    tiers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class JobPage:
    """Some of a tenant's jobs, newest first, and where to go on."""

    jobs: list[JobView]
    cursor: str | None
