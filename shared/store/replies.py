"""The types into which the scripts' answers are decoded, so that callers do not handle flat lists."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from shared.jobs.job import ClaimedJob, ClaimRef, JobView
from shared.jobs.outcomes import Outcome, Refused
from shared.jobs.routing import RoutedRequest


@dataclass(frozen=True)
class Admitted:
    """The job is admitted. `again` is true if an earlier offer with the same id or Idempotency-Key was admitted."""

    id: str
    again: bool
    position: int
    inflight: int
    #: Whether the earlier job was canceled because the answer to its offer was lost; true only if `again` is true.
    taken_back: bool = False
    #: The job as it was when it was admitted; None if `again` is true.
    view: JobView | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Quote:
    """The cost and predicted end of a job. `refused` is the refusal that an offer would get now, or None."""

    cost_mwt: int
    eta_ms: int | None
    #: The ms until such a job ends in eight of ten cases, from and to; None if the end is not predicted.
    eta_interval_ms: tuple[int, int] | None
    refused: Refused | None
    #: The request in the pool that its route chooses or, if no pool of it would take the job, in the pool whose refusal
    #: this is. None if the request names a pool.
    pool: RoutedRequest | None = None
    #: The RouteReason why the route chooses the pool, or "".
    why: str = ""
    #: The most that the job can cost by the pool's prices, in millionths of the currency.
    max_cost_micro: int = 0


@dataclass(frozen=True)
class IdempotencyMismatch:
    """The Idempotency-Key was used before with another body; `id` is the id of the job of that earlier request."""

    id: str


@dataclass(frozen=True)
class RouteChanged:
    """The store's route is not the one that the offer describes; the door has to read it again."""


@dataclass(frozen=True)
class StaleClaim:
    """The job is for a line of a batch that another process has claimed, that is to end, or that has an answer."""


class SettleAnswer(StrEnum):
    """The result of a settle."""

    SETTLED = "settled"
    #: The job had already ended under the same claim; nothing changed.
    ALREADY = "already"
    #: The job was requeued, or another claim holds it; nothing changed.
    LOST = "lost"
    #: The store has no such job.
    GONE = "gone"


@dataclass(frozen=True)
class Settled:
    """The result of a settle and the outcome that the store recorded, or None if the answer contains no outcome."""

    answer: SettleAnswer
    outcome: Outcome | None


class CancelAnswer(StrEnum):
    """The result of a cancel: job canceled, worker asked to stop the job, job had already ended, or no such job."""

    CANCELED = "canceled"
    REQUESTED = "requested"
    ENDED = "ended"
    GONE = "gone"


@dataclass(frozen=True)
class HeartbeatReport:
    """A worker's report with each renewal. Operators' commands print these figures, and admission uses them."""

    worker: str
    model: str
    slots: int
    slots_busy: int
    cells: int
    cells_free: int
    #: Further figures by name (rates, device, version), as text or numbers.
    facts: dict[str, str | int | float] = field(default_factory=dict)
    draining: bool = False


class Progress(NamedTuple):
    """How far a running job has come: tokens generated so far, and CPU time taken so far, in weighted tokens."""

    generated: int = 0
    cpu_tokens: int = 0


class HeldProgress(NamedTuple):
    """A worker's report of a job that it holds: the claim, the progress, and the time in its slot."""

    held: ClaimRef
    generated: int
    cpu_tokens: int
    #: Time since the job got its slot, in ms; None if it is paused.
    slot_ms: int | None

    @property
    def line(self) -> str:
        """The job's line in the report that the script claim gets."""
        slot_ms = -1 if self.slot_ms is None else self.slot_ms
        return f"{self.held.id} {self.held.token} {self.generated} {self.cpu_tokens} {slot_ms}\n"


@dataclass(frozen=True)
class ClaimRequest:
    """A worker's claim: for up to `room` jobs and, with preemption, for the slots of running ones.

    `held` are all jobs that the worker holds; its paused jobs take no slot, and their cells are free. No queued job of
    the tenants in `aside` is claimed. If `trusts_last_attempts`, several jobs on their last attempt may run.
    """

    claim_id: str
    model: str
    room: int
    cells_free: int
    held: Sequence[HeldProgress] = ()
    aside: Sequence[str] = ()
    trusts_last_attempts: bool = False


@dataclass(frozen=True)
class ClaimReply:
    """The answer to a claim: the jobs to start, and the ids of the jobs to resume, to pause, and that the worker lost.

    The jobs to pause give their slots to those that start or resume.
    """

    started: list[ClaimedJob]
    resume: list[str]
    pause: list[str]
    lost: list[str]
    #: In how many ms another call may pause a job; -1 if nobody else wants the slots of the jobs that compute.
    ask_in_ms: int = -1


@dataclass(frozen=True)
class Renewed:
    """The answer to a renewal: the ids of the jobs that the worker has lost, and of the jobs that it must stop."""

    lost: list[str]
    canceled: list[str]
    #: Whether an operator has requested that this worker drain.
    drain: bool
    #: Whether RQ has no record of this worker, so that the worker must register with RQ (again).
    unknown_to_rq: bool = False
    #: How many requests for the worker's model were refused so far because of the load.
    load_refusals: int = 0


class Appended(NamedTuple):
    """The result of an append: the ids of jobs that the worker has lost, and of those that are followed.

    The latter are named only if they were asked for.
    """

    lost: list[str]
    followed: list[str]


@dataclass(frozen=True)
class Rings:
    """The result of a worker's wait at its doorbells. All fields have their defaults if nothing rang in time."""

    #: Whether the pool's doorbell rang, so that a job may be queued for any of its workers.
    pool: bool = False
    #: Whether a slower worker left a job to this worker.
    left_a_job: bool = False
    #: Whether a job waits for a slot that another tenant's job has, so that a worker without a free slot has to claim.
    contested: bool = False
    #: Whether a job may be queued whose prompt begins like one that this worker has computed.
    for_prefix: bool = False
    #: The ids of the worker's jobs to cancel, and of those that somebody begins to follow.
    canceled: list[str] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reaped:
    """How many jobs one call of reap moved, and the ms until the next deadline or lease end (None without one)."""

    expired: int
    requeued: int
    failed: int
    canceled: int
    due_in_ms: int | None

    @property
    def moved(self) -> int:
        return self.expired + self.requeued + self.failed + self.canceled


#: The sets of jobs that can be swept.
SweepSource = Literal["inflight", "deadlines", "leases"]


@dataclass(frozen=True)
class Swept:
    """The result of one call of sweep."""

    repairs: int
    #: The first rank that the next call must examine; None at the end of the set.
    next_start: int | None
    #: Whether the sets of queued and of running jobs hold together as many jobs as the set of inflight jobs.
    sets_agree: bool
    #: The active sets of the examined jobs: `<slug>` for pools, `<slug>@<group>` for groups.
    active_sets: list[str]
    #: Mends that no process has logged yet, each as its kind and the key, or the key and the field.
    notices: list[str]


@dataclass(frozen=True)
class WorkerView:
    """One worker, as described by its last heartbeat."""

    name: str
    model: str
    live: bool
    heartbeat_age_ms: int
    slots: int
    slots_busy: int
    cells: int
    cells_free: int
    draining: bool
    facts: dict[str, str]

    @property
    def is_loadable(self) -> bool:
        """Whether this is a model that its worker does not hold, but would load for the jobs that are queued for it."""
        return "claims_in_ms" in self.facts

    @property
    def kv_used(self) -> float:
        """The share of the KV cells that is reserved. A worker that keeps no cells may report more free than it has."""
        return max(0.0, 1 - self.cells_free / self.cells) if self.cells > 0 else 0.0


@dataclass(frozen=True)
class TenantView:
    """One tenant's bounds, queued work and service."""

    name: str
    weight: float
    waiting: int
    waiting_tokens: int
    max_waiting: int
    #: None if PENSTOCK_MAX_QUEUE_TOKENS is `auto`: the expected work is then bounded instead of the tokens.
    max_waiting_tokens: int | None
    running: int
    oldest_age_ms: int | None
    #: The group that its policy names, and the slugs of the models for which it has queued jobs.
    group: str | None = None
    queues: frozenset[str] = frozenset()


class PoolReason(StrEnum):
    """Why no worker of a pool claims jobs, or none can be relied on. The same words are in `/health/ready`."""

    NO_WORKER = "no_worker"
    #: All live workers drain.
    DRAINING = "draining"
    #: The live workers that do not drain are new, and workers of the pool restart again and again.
    WORKERS_RESTART = "workers_restart"
    #: No worker holds the model, and loading it has failed; after a pause it is tried again.
    LOAD_FAILED = "load_failed"


@dataclass(frozen=True)
class PoolView:
    """One pool: the workers of one model, and the jobs that are queued for them."""

    model: str
    #: Time since the last heartbeat of any worker, in ms.
    heartbeat_age_ms: int
    live_workers: int
    #: None if a live worker claims jobs.
    reason: PoolReason | None
    waiting: int
    running: int
    #: The slots of the live workers; 0 if none is live.
    slots: int
    #: The age of the oldest queued job of the snapshot's tenants that is not a batch job.
    oldest_age_ms: int | None
    #: The prices of 1,000 prompt tokens and of 1,000 answer tokens.
    prompt_price_micro: int = 0
    answer_price_micro: int = 0
    #: How often in a row loading the model has failed, in how many ms it is tried again, and why it failed.
    load_failures: int = 0
    load_retry_in_ms: int = 0
    load_error: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A consistent snapshot of the whole system, for metrics, `penstock top`, the console and `penstock doctor`."""

    now_ms: int
    inflight: int
    max_inflight: int
    waiting: int
    running: int
    #: Counters and histogram buckets by the field names that shared/metrics/fleet.py describes; empty if the caller did
    #: not ask for them.
    stats: dict[str, int]
    tenants: list[TenantView]
    #: At most 64 workers: those with the latest heartbeats, an equal number of each pool. Some may not be live.
    workers: list[WorkerView]
    models: list[str]
    draining: bool
    #: Maps the served model of each pool to the pool's tier; empty if degradation is off.
    tiers: dict[str, int] = field(default_factory=dict)
    #: The models that at least one live worker serves.
    live_models: list[str] = field(default_factory=list)
    #: The numbers of all live workers and of their slots, and the weighted tokens per second that they can compute;
    #: these figures include workers that `workers` does not list.
    live_workers: int = 0
    live_slots: int = 0
    capacity_wtps: float = 0.0
    #: By how many ms the scripts' time is ahead of the clock of the store's machine, because that clock was set back.
    ahead_ms: int = 0
    #: Per live model: seconds of queued work (no batch jobs), if rates are known; running jobs over slots, at most 1.
    backlogs_s: dict[str, float] = field(default_factory=dict)
    busy_ratios: dict[str, float] = field(default_factory=dict)
    #: By model, the pools of the 64 models that were served last, also those without live workers.
    pools: dict[str, PoolView] = field(default_factory=dict)

    @property
    def groups(self) -> set[str]:
        """The groups of the tenants."""
        return {tenant.group for tenant in self.tenants if tenant.group is not None}


@dataclass(frozen=True)
class Overview:
    """The few numbers that show whether and how many jobs are admitted."""

    inflight: int
    max_inflight: int
    #: The numbers of live workers and of their slots.
    workers: int
    slots: int
    draining: bool
    #: Whether the live workers that do not drain are new, in pools whose workers restart again and again.
    workers_restart: bool = False


@dataclass(frozen=True)
class PatrolStep:
    """The next queues to reconcile, each as (tenant, model slug); none if the process is not on patrol."""

    #: When the process should ask again, in ms from now.
    rest_ms: int
    #: The number of the round over all queues, and whether these queues are its first ones.
    round: int
    begins_round: bool
    queues: list[tuple[str, str]]


@dataclass(frozen=True)
class JobPage:
    """A page of a tenant's jobs, newest first. `cursor` requests the next page; it is None on the last page."""

    jobs: list[JobView]
    cursor: str | None
