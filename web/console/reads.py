"""Reads the data that only the console shows: counters that it compares over minutes, jobs, and facts about tenants."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any, TypeVar

import redis

from shared.accounts.tenants import Tenants
from shared.log import LimitedEvent
from shared.metrics.spec import BUCKETS_MS
from shared.store import keys
from shared.store.decode import integer, text
from shared.store.redis_errors import store_faults
from shared.store.replies import Snapshot
from shared.store.store import Store
from web.api.job_json import error_json
from web.runtime.asked_cells import asked_cells
from web.runtime.context import DoorContext
from web.runtime.fleet_metrics import with_pauses

#: The outcomes of jobs that the console lists.
FAILURES = ("failed", "expired")
_FIRST_TOKEN = "time_to_first_token"  # noqa: S105 - a field of the statistics, not a password
_BUCKET_OF = {str(upper_ms): place for place, upper_ms in enumerate(BUCKETS_MS)} | {"inf": len(BUCKETS_MS)}

Buckets = tuple[int, ...]
_NO_JOBS: Buckets = (0,) * (len(BUCKETS_MS) + 1)


@dataclass(frozen=True)
class Counters:
    """The counters at one time, in ms since the epoch. Tenants without counters of their own share the name `other`."""

    at_ms: int
    #: By tenant and refusal reason.
    refused: Mapping[tuple[str, str], int]
    #: By tenant and model.
    failed: Mapping[tuple[str, str], int]
    #: By tenant: the number of jobs in each bucket of the time to the first token.
    first_token: Mapping[str, Buckets]


def divide(snapshot: Snapshot) -> tuple[Snapshot, Counters]:
    """Return the snapshot with only the counters that the board shows, and the counters that the console keeps.

    A snapshot may have 15,000 counters. A history of all of them over minutes would take too much memory.
    """
    rates: dict[str, int] = {}
    refused: dict[tuple[str, str], int] = {}
    failed: dict[tuple[str, str], int] = {}
    first_token: dict[str, list[int]] = {}
    for name, value in with_pauses(snapshot.stats.items()):
        kind, _, rest = name.partition("|")
        if kind == "refused":
            rates[name] = value
            tenant, _, reason = rest.partition("|")
            refused[tenant, reason] = value
        elif kind in {"served", "crashes"} or (kind == "tokens" and rest.endswith("|completion")):
            rates[name] = value
        elif kind == "ended" and rest.endswith(FAILURES) and rest.count("|") > 1:
            tenant, _, model_and_outcome = rest.partition("|")
            place = tenant, model_and_outcome.rpartition("|")[0]
            failed[place] = failed.get(place, 0) + value
        elif kind == "h" and rest.startswith(f"{_FIRST_TOKEN}|"):
            parts = rest.split("|")
            bucket = _BUCKET_OF.get(parts[-1])
            if bucket is not None:
                first_token.setdefault(parts[1], list(_NO_JOBS))[bucket] += value
    kept = {tenant: tuple(buckets) for tenant, buckets in first_token.items()}
    return replace(snapshot, stats=rates), Counters(snapshot.now_ms, refused, failed, kept)


def refusals_between(before: Counters, after: Counters) -> dict[str, dict[str, int]]:
    """Return how many offers of each tenant were refused in between, by reason; the most frequent reason is first."""
    grown: dict[str, dict[str, int]] = {}
    for (tenant, reason), number in sorted(after.refused.items(), key=lambda item: -item[1]):
        refused = number - before.refused.get((tenant, reason), 0)
        if refused > 0:
            grown.setdefault(tenant, {})[reason] = refused
    return {tenant: dict(sorted(reasons.items(), key=lambda item: -item[1])) for tenant, reasons in grown.items()}


def first_tokens_between(before: Counters, after: Counters) -> dict[str, Buckets]:
    """Return for each tenant how many jobs got their first token in between, by bucket."""
    grown = {
        tenant: tuple(
            max(0, now - then) for now, then in zip(buckets, before.first_token.get(tenant, _NO_JOBS), strict=True)
        )
        for tenant, buckets in after.first_token.items()
    }
    return {tenant: buckets for tenant, buckets in grown.items() if any(buckets)}


def add(*several: Buckets) -> Buckets:
    """Return the sums of the buckets of several tenants."""
    return tuple(map(sum, zip(_NO_JOBS, *several, strict=True)))


def quantile_ms(buckets: Buckets, quantile: float) -> int | None:
    """Return the time within which this part of the jobs got their first token, in ms; None without jobs.

    Within a bucket, times are taken as evenly distributed, as Prometheus does, so that both show the same. The last
    bucket has no upper bound, and its lower one is returned.
    """
    total = sum(buckets)
    if not total:
        return None
    wanted, below = quantile * total, 0
    lower_ms = 0
    for upper_ms, number in zip(BUCKETS_MS, buckets, strict=False):
        if number and below + number >= wanted:
            return ceil(lower_ms + (upper_ms - lower_ms) * (wanted - below) / number)
        below += number
        lower_ms = upper_ms
    return lower_ms


_UNREADABLE = LimitedEvent("console.unreadable")
#: At most this many running jobs are read in one pass; the fleet may run more.
MAX_RUNNING = 200
#: One pass asks at most this many queues for failed jobs, and each queue for at most this many jobs.
_MAX_QUEUES, _NEWEST = 8, 5

_RUNNING_FIELDS = ("tenant", "model", "worker", "started_ms", "paused_since_ms", "cancel")

T = TypeVar("T")


@dataclass(frozen=True)
class RunningJob:
    """A job that a worker has claimed. `age_ms` is the time since its last claim."""

    id: str
    tenant: str
    model: str
    worker: str
    age_ms: int
    is_paused: bool
    cancel_requested: bool


@dataclass(frozen=True)
class RunningJobs:
    """The running jobs whose leases end first, MAX_RUNNING at most."""

    jobs: Sequence[RunningJob]
    #: Whether no other job runs.
    are_all: bool


@dataclass(frozen=True)
class FailedJob:
    """A job that failed or expired, and why."""

    id: str
    tenant: str
    outcome: str
    code: str
    message: str
    ended_ms: int


@dataclass(frozen=True)
class TenantFacts:
    """The tenants' settings by operators, and the names of all tenants, sorted."""

    names: tuple[str, ...] = ()
    #: The group of each tenant that has one.
    group_of: Mapping[str, str] = field(default_factory=dict)
    disabled: frozenset[str] = frozenset()


def or_default(read: Callable[[], T], default: T) -> T:
    """Return what `read` returns, or the default if another program has spoiled what it reads.

    One spoiled key must not hide all that can still be read. Raises StoreUnavailable.
    """
    try:
        return read()
    except (redis.ResponseError, ValueError) as error:
        _UNREADABLE.log("warning", error=str(error))
        return default


def read_tenant_facts(store: Store) -> TenantFacts:
    """Return the facts about all tenants, which may be thousands. Raises StoreUnavailable."""
    entries = Tenants(store.client).list()
    return TenantFacts(
        names=tuple(one.name for one in entries),
        group_of={one.name: one.policy.group for one in entries if one.policy is not None and one.policy.group},
        disabled=frozenset(one.name for one in entries if one.policy is not None and one.policy.disabled),
    )


def read_running(store: Store, now_ms: int) -> RunningJobs:
    """Return the running jobs. Raises StoreUnavailable."""
    with store_faults(store.client):
        found_ids: Any = store.client.zrange(keys.leases(), 0, MAX_RUNNING)
        ids = found_ids[:MAX_RUNNING]
        with store.client.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hmget(keys.rq_job(text(job_id)), [f"penstock_{name}" for name in _RUNNING_FIELDS])
            # A record of another type, which another program wrote, is left out.
            answers = pipe.execute(raise_on_error=False)
    found = []
    for job_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, Exception):
            continue
        tenant, model, worker, started, paused, cancel = ("" if raw is None else text(raw) for raw in answer)
        age_ms = max(0, now_ms - integer(started)) if started else 0
        found.append(RunningJob(text(job_id), tenant, model, worker, age_ms, paused not in {"", "0"}, cancel != ""))
    return RunningJobs(found, are_all=len(found_ids) <= MAX_RUNNING)


def read_failed(store: Store, before: Counters, after: Counters) -> list[FailedJob]:
    """Return the newest failed and expired jobs of the queues in which some have ended between two counts.

    Raises StoreUnavailable.
    """
    grown = [queue for queue, number in after.failed.items() if number > before.failed.get(queue, 0)]
    found: list[FailedJob] = []
    for tenant, model in grown[:_MAX_QUEUES]:
        found += or_default(partial(_newest_failed, store, tenant, model), list[FailedJob]())
    return found


def _newest_failed(store: Store, tenant: str, model: str) -> list[FailedJob]:
    with store_faults(store.client):
        ids: Any = store.client.zrevrange(keys.rq_failed(keys.queue_name(tenant, model)), 0, _NEWEST - 1)
    found = []
    for raw in ids:
        view = or_default(partial(store.touch, text(raw), tenant=tenant, quiet=True), None)
        error = None if view is None else error_json(view)
        if view is not None and error is not None and view.ended_ms is not None:
            job = FailedJob(view.id, tenant, view.state.value, error["code"], error["message"], view.ended_ms)
            found.append(job)
    return found


def read_counts(context: DoorContext, tenants: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of queued and of running jobs of these tenants, in all cells that answer.

    Raises StoreUnavailable if none does.
    """
    names = list(tenants)
    found = asked_cells(context).ask(lambda one: _read_counts(one.store, names))
    return {name: _sums(counts[name] for counts in found.values()) for name in names}


def _sums(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    waiting, running = zip(*counts, strict=True)
    return sum(waiting), sum(running)


def _read_counts(store: Store, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    with store_faults(store.client), store.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hmget(keys.tenant(name), "waiting", "running")
        answers = pipe.execute(raise_on_error=False)
    # A tenant whose record another program has replaced counts as one without jobs.
    counted = {
        name: (0, 0) if isinstance(answer, Exception) else answer for name, answer in zip(names, answers, strict=True)
    }
    return {name: (_number(waiting), _number(running)) for name, (waiting, running) in counted.items()}


def _number(raw: Any) -> int:
    return integer(None if raw is None else text(raw))
