"""Computes everything that the console shows at one time from two snapshots and what was counted between them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from shared.store.crashes import crashes_of_pools
from shared.store.replies import Snapshot
from shared.store_fault import StoreFault
from shared.views.frame import Frame, TenantLine, make_frame
from shared.views.models import ModelLine, RoutesByPool
from shared.views.shares import Sums
from web.console.reads import (
    Buckets,
    Counters,
    FailedJob,
    RunningJob,
    RunningJobs,
    TenantFacts,
    add,
    first_tokens_between,
    quantile_ms,
    refusals_between,
)

#: At most this many lines of each table are shown on the board.
MAX_LINES = 20
#: At most this many of the last refusals, and of the last failures, are shown.
MAX_EVENTS = 8
#: A tenant below its share was served less than this part of its due. Sums are exact to the length of a job.
_BELOW = 0.9


@dataclass(frozen=True)
class NoBoard:
    """Why there is no board at this time."""

    #: None for anything but the store, such as a fault in the code of the console. The log has the error.
    store_fault: StoreFault | None


@dataclass(frozen=True)
class Line:
    """A tenant or a group. Rates are None if they are not known."""

    name: str
    #: The group of a tenant, "" for none; for a group, how many of its tenants the board counts.
    group: str
    members: int
    is_disabled: bool
    waiting: int
    running: int
    #: None if there are more running jobs than the console reads.
    paused: int | None
    oldest_ms: int | None
    tokens_per_s: float | None
    served: float | None
    due: float | None
    #: The refusals since the first count, by reason.
    refused: Mapping[str, int]
    first_token_p50_ms: int | None
    first_token_p99_ms: int | None

    @property
    def is_below_share(self) -> bool:
        """Whether jobs other than batch jobs wait, and clearly less was served than was due."""
        return self.oldest_ms is not None and self.due is not None and (self.served or 0.0) < _BELOW * self.due


@dataclass(frozen=True)
class Board:
    """Everything that the console shows at one time."""

    frame: Frame
    #: The tables' lines: most queued jobs first, then most running ones, then by name.
    tenants: list[Line]
    groups: list[Line]
    #: The running jobs that were read, the oldest claim first.
    running: list[RunningJob]
    #: How many running jobs were read: those whose leases end first. None if these are all.
    n_read: int | None
    #: How many tenants and groups there are, with those that no table shows.
    n_tenants: int
    n_groups: int
    paused: int
    slots: int
    slots_busy: int
    tokens_per_s: float
    live_workers: int
    #: Of each pool whose workers have crashed, how many did since the store was created.
    crashes: Mapping[str, int]
    #: For how long refusals and first tokens were counted, in seconds.
    counted_s: float
    #: Why the store refuses writes, or None if it accepts them.
    store_fault: StoreFault | None = None

    def model(self, name: str) -> ModelLine | None:
        """Return the line of a model; None if it was not served in the last hour and has neither jobs nor routes."""
        return next((line for line in self.frame.models if line.model == name), None)

    def tenant(self, name: str) -> Line | None:
        """Return the line of a tenant; None if the snapshot, which has those admitted last, does not have it."""
        return next((line for line in self.tenants if line.name == name), None)

    @property
    def not_served(self) -> list[ModelLine]:
        """The models that are not served."""
        return [line for line in self.frame.models if line.reason is not None]


@dataclass(frozen=True)
class Since:
    """The counters now, and at the beginning of the period that the console shows."""

    first: Counters
    now: Counters

    @cached_property
    def refused(self) -> Mapping[str, Mapping[str, int]]:
        """The refusals in the period, by tenant and reason."""
        return refusals_between(self.first, self.now)

    @cached_property
    def first_tokens(self) -> Mapping[str, Buckets]:
        """By tenant, the jobs that got their first token in the period, by bucket."""
        return first_tokens_between(self.first, self.now)

    @property
    def seconds(self) -> float:
        """How long the period is."""
        return max(0.0, (self.now.at_ms - self.first.at_ms) / 1000)


def make_board(
    before: Snapshot,
    after: Snapshot,
    since: Since,
    facts: TenantFacts,
    running: RunningJobs,
    sums: Sums,
    routes: RoutesByPool = MappingProxyType({}),
) -> Board:
    """Return the board for the later of two snapshots. Rates are those between them, and shares those of `sums`."""
    frame = make_frame(before, after, "waiting", sums, routes)
    groups = {tenant.name: tenant.group for tenant in after.tenants if tenant.group is not None}
    paused: dict[str, int] = {}
    for job in running.jobs:
        paused[job.tenant] = paused.get(job.tenant, 0) + job.is_paused
    lines = [
        _tenant_line(
            line, groups.get(line.tenant, ""), paused.get(line.tenant, 0) if running.are_all else None, since, facts
        )
        for line in frame.tenants
    ]
    group_lines = _group_lines(lines, since)
    live = [worker for worker in frame.workers if worker.state != "silent"]
    return Board(
        frame=frame,
        tenants=sorted(lines, key=_order),
        groups=sorted(group_lines, key=_order),
        running=sorted(running.jobs, key=lambda job: (-job.age_ms, job.id)),
        n_read=None if running.are_all else len(running.jobs),
        n_tenants=len({*facts.names, *(line.name for line in lines)}),
        n_groups=len(group_lines),
        paused=sum(worker.paused for worker in live),
        slots=after.live_slots,
        slots_busy=sum(worker.busy for worker in live),
        tokens_per_s=sum(worker.tokens_per_s or 0.0 for worker in live),
        live_workers=after.live_workers,
        crashes=crashes_of_pools(after.stats),
        counted_s=since.seconds,
    )


def _order(line: Line) -> tuple[int, int, str]:
    return -line.waiting, -line.running, line.name


def _tenant_line(line: TenantLine, group: str, paused: int | None, since: Since, facts: TenantFacts) -> Line:
    buckets = since.first_tokens.get(line.tenant, ())
    return Line(
        name=line.tenant,
        group=group,
        members=0,
        is_disabled=line.tenant in facts.disabled,
        waiting=line.waiting,
        running=line.running,
        paused=paused,
        oldest_ms=line.oldest_ms,
        tokens_per_s=line.tokens_per_s,
        served=line.served,
        due=line.due,
        refused=since.refused.get(line.tenant, {}),
        first_token_p50_ms=quantile_ms(buckets, 0.5),
        first_token_p99_ms=quantile_ms(buckets, 0.99),
    )


def _group_lines(lines: Iterable[Line], since: Since) -> list[Line]:
    """Return a line for each group of these tenants, with their sums."""
    members: dict[str, list[Line]] = {}
    for line in lines:
        if line.group:
            members.setdefault(line.group, []).append(line)
    return [_sum_of(name, its, since) for name, its in members.items()]


def _sum_of(group: str, members: Sequence[Line], since: Since) -> Line:
    refused: dict[str, int] = {}
    for line in members:
        for reason, number in line.refused.items():
            refused[reason] = refused.get(reason, 0) + number
    buckets = add(*(since.first_tokens[line.name] for line in members if line.name in since.first_tokens))
    oldest = [line.oldest_ms for line in members if line.oldest_ms is not None]
    known = [line.paused for line in members if line.paused is not None]
    return Line(
        name=group,
        group="",
        members=len(members),
        is_disabled=False,
        waiting=sum(line.waiting for line in members),
        running=sum(line.running for line in members),
        paused=sum(known) if len(known) == len(members) else None,
        oldest_ms=max(oldest, default=None),
        tokens_per_s=_sum(line.tokens_per_s for line in members),
        served=_sum(line.served for line in members),
        due=_sum(line.due for line in members),
        refused=dict(sorted(refused.items(), key=lambda item: -item[1])),
        first_token_p50_ms=quantile_ms(buckets, 0.5),
        first_token_p99_ms=quantile_ms(buckets, 0.99),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class Refusals:
    """Refusals of one tenant for one reason, one after another. `at_ms` is the time of the last one."""

    tenant: str
    reason: str
    number: int
    at_ms: int


@dataclass
class RecentEvents:
    """The last refusals and failures, the newest first, as the passes of the reader have seen them."""

    refusals: list[Refusals] = field(default_factory=list)
    failures: list[FailedJob] = field(default_factory=list)

    #: Refusals of the same tenant for the same reason within this time are one line.
    _TOGETHER_MS = 10_000

    def note(self, before: Counters, after: Counters, failed: Iterable[FailedJob]) -> None:
        """Add what has happened between two counts."""
        for tenant, reasons in refusals_between(before, after).items():
            for reason, number in reasons.items():
                self._add(Refusals(tenant, reason, number, after.at_ms))
        self.refusals = sorted(self.refusals, key=lambda one: -one.at_ms)[:MAX_EVENTS]
        by_id = {job.id: job for job in (*self.failures, *failed)}
        self.failures = sorted(by_id.values(), key=lambda job: -job.ended_ms)[:MAX_EVENTS]

    def _add(self, new: Refusals) -> None:
        for place, known in enumerate(self.refusals):
            same = (known.tenant, known.reason) == (new.tenant, new.reason)
            if same and new.at_ms - known.at_ms <= self._TOGETHER_MS:
                self.refusals[place] = Refusals(new.tenant, new.reason, known.number + new.number, new.at_ms)
                return
        self.refusals.append(new)
