"""Reads the data that only the console shows: running jobs, failed jobs, and facts about all tenants."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import redis

from shared.accounts.tenants import Tenants
from shared.log import LimitedEvent
from shared.store import keys
from shared.store.decode import integer, text
from shared.store.redis_errors import store_faults
from shared.store.store import Store
from web.api.job_json import error_json
from web.console.board import Counters

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


def read_counts(store: Store, tenants: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of queued and of running jobs of these tenants. Raises StoreUnavailable."""
    names = list(tenants)
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
