"""Read the state of the whole system, the number of one tenant's jobs, and the usage of tenants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from shared.accounts.budgets import Budgets
from shared.accounts.usage import days_between, parse_day, parse_dimensions, sum_by
from shared.errors import ConfigError, StoreUnavailable
from shared.jobs.outcomes import Refusal
from shared.jobs.tenant_policy import TenantPolicy
from shared.settings.queue import QueueSettings
from shared.settings.setting import AUTO
from shared.store import keys
from shared.store.redis_errors import store_faults
from shared.store.replies import Overview
from shared.store_fault import StoreFault
from web.http.api_errors import ApiError, invalid_field
from web.runtime.context import DoorContext

#: The most days of one call. `penstock usage` reads more.
MAX_DAYS = 31

T = TypeVar("T")


@dataclass(frozen=True)
class Readiness:
    """Whether jobs are admitted. `workers` is the number of live workers."""

    #: Why the workers or the database of collections do not serve, or None if they do.
    reason: str | None
    workers: int
    #: Why the store cannot serve, or None if it can. It is told instead of `reason`, which usually follows from it.
    store_fault: StoreFault | None = None
    #: The model, alias or route whose readiness this is; None for that of the system.
    model: str | None = None
    #: With a directory of cells, `ready` for each cell, or why it is not.
    cells: Mapping[str, str] | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON body of an answer to `/health/ready`."""
        body: dict[str, Any] = {
            "status": "ready" if self.is_ready else "not_ready",
            "reason": self.reason,
            "workers": self.workers,
        }
        if self.model is not None:
            body["model"] = self.model
        if self.cells is not None:
            body["cells"] = dict(self.cells)
        if self.store_fault is not None:
            body |= {"reason": Refusal.STORE_UNAVAILABLE.value, "store_fault": self.store_fault.value}
        return body

    @property
    def word(self) -> str:
        """`ready`, or why jobs are not admitted."""
        return Refusal.STORE_UNAVAILABLE.value if self.store_fault is not None else self.reason or "ready"

    @property
    def is_ready(self) -> bool:
        """Whether jobs are admitted."""
        return self.reason is None and self.store_fault is None

    @property
    def jobs_start(self) -> bool:
        """Whether workers claim jobs, even if they may not live long enough to end them."""
        return self.reason in {None, "workers_restart"}


def readiness_over_cells(context: DoorContext, model: str | None) -> Readiness:
    """Return whether the system or, with `model`, this model is ready in one of the cells.

    Raises ApiError (404) if no cell has the model, and StoreUnavailable if there is no directory of cells and the
    store does not answer.
    """

    def read(one: DoorContext) -> Readiness:
        return read_readiness(one) if model is None else read_model_readiness(one, model)

    if context.cells.directory is None:
        return read(context)
    found: dict[str, Readiness] = {}
    problem: ApiError | None = None
    for one in context.cells.all():
        try:
            is_away = context.cells.is_away(one)
            found[one.cell] = Readiness(None, 0, StoreFault.UNREACHABLE) if is_away else read(one)
        except StoreUnavailable as error:
            found[one.cell] = Readiness(None, 0, error.fault)
        except ApiError as error:
            problem = error
    if problem is not None and not any(one.is_ready for one in found.values()):
        raise problem
    best = min(found.values(), key=lambda one: not one.is_ready)
    workers = sum(one.workers for one in found.values())
    return replace(best, workers=workers, model=model, cells={name: one.word for name, one in found.items()})


def read_readiness(context: DoorContext) -> Readiness:
    """Return whether the store accepts writes and a worker lives that claims jobs and does not restart again and again.

    Raises StoreUnavailable. The answer is up to a second old, because anybody may ask for it as often as they like.
    """
    overview = context.readiness.get()
    reason = None
    if overview.workers == 0:
        reason = "no_worker"
    elif overview.draining:
        reason = "draining"
    elif overview.workers_restart:
        reason = "workers_restart"
    return Readiness(reason, overview.workers, context.write_fault.get())


def read_model_readiness(context: DoorContext, name: str) -> Readiness:
    """Return whether a live worker claims jobs of the model, or of one of the pools of the route, with this name.

    The answer is up to two seconds old, and is made from what this process reads for all requests. Raises ApiError
    (404) if nothing has the name, and StoreUnavailable.
    """
    directory = context.pools.directory()
    pools = [directory.readiness_of(pool) for pool in context.pools.pools_of(name)]
    workers = sum(pool.live_workers for pool in pools)
    reasons = [pool.reason for pool in pools]
    reason = None if None in reasons else reasons[0]
    system = read_readiness(context)
    return replace(system, reason=reason or system.reason, workers=workers, model=name)


def with_retrieval(context: DoorContext, readiness: Readiness) -> Readiness:
    """Return the readiness for jobs that use collections: their database must answer too.

    The answer is up to a second old. It does not say why the database is away, because that names hosts and users.
    """
    reason = readiness.reason or ("no_database" if context.database is None else None)
    return replace(readiness, reason=reason or ("database_away" if context.database_away.get() else None))


def can_no_job_end(context: DoorContext) -> bool:
    """Return whether no job runs and no worker claims one in any cell, so that all inflight jobs stay queued.

    Raises StoreUnavailable.
    """
    return all(map(_can_no_job_end_in, context.cells.all()))


def _can_no_job_end_in(context: DoorContext) -> bool:
    if read_readiness(context).jobs_start:
        return False
    client = context.store.client
    with store_faults(client):
        return bool(client.zcard(keys.leases()) == 0)


def read_totals(context: DoorContext) -> dict[str, int]:
    """Return the three metrics that the gate's `metrics` frame answers, as sums over cells. Raises StoreUnavailable.

    Cells that are away are left out.
    """
    cells = context.cells.present()
    counters = [one.store.counters("executed", "yielded") for one in cells]
    executed, yielded = (sum(values) for values in zip(*counters, strict=True))
    inflight = sum(one.overview().inflight for one in cells)
    return {"inflight": inflight, "executed_total": executed, "yielded_total": yielded}


def count_tenant(context: DoorContext, tenant: str) -> dict[str, int]:
    """Return how many jobs of a tenant wait and run, and the tokens of those that wait. Raises StoreUnavailable.

    With several cells, these are sums; those that are away are left out.
    """
    names = ("waiting", "waiting_tokens", "running")
    counts = dict.fromkeys(names, 0)
    for client in (one.store.client for one in context.cells.present()):
        with store_faults(client):
            counted: Any = client.hmget(keys.tenant(tenant), *names)
        for name, value in zip(names, counted, strict=True):
            counts[name] += int(value or 0)
    return counts


def bounds_of(settings: QueueSettings, policy: TenantPolicy | None, overview: Overview) -> dict[str, Any]:
    """Return the tenant's bounds and weight.

    Each bound is taken from the tenant's policy or, if the policy does not set the bound, from the settings. Without a
    weight in the policy, the weight is 1.

    If PENSTOCK_MAX_QUEUE_SIZE is `auto`, the bound on queued jobs is computed from the number of slots of live workers.
    If PENSTOCK_MAX_QUEUE_TOKENS is `auto`, the bound on tokens is None. shared/lua/lib/admission/facts.lua has the same
    formula, and then bounds the expected work.
    """
    policy = policy or TenantPolicy()
    max_jobs = max(16, 2 * overview.slots) if settings.max_queue_size == AUTO else settings.max_queue_size
    max_tokens = None if settings.max_queue_tokens == AUTO else settings.max_queue_tokens
    return {
        "max_waiting": policy.max_waiting or max_jobs,
        "max_waiting_tokens": policy.max_waiting_tokens or max_tokens,
        "weight": policy.weight or 1,
    }


def read_usage(
    context: DoorContext, tenant: str | None, *, by: str | None, first: str | None, last: str | None
) -> dict[str, Any]:
    """Return what `read_sums` returns, and the budgets of the tenant, or those of all tenants and groups."""
    sums, budgets = read_sums(context, tenant, by=by, first=first, last=last), Budgets(context.store.client)
    found = budgets.of_tenant(tenant) if tenant else budgets.read_all()
    return sums | {"budgets": [budget.as_dict() for budget in found]}


def read_sums(
    context: DoorContext, tenant: str | None, *, by: str | None, first: str | None, last: str | None
) -> dict[str, Any]:
    """Return the sums of a tenant's usage, or those of all tenants if `tenant` is None.

    `by` lists the dimensions; the default is `day,model`, with `tenant` for all tenants. `first` and `last` are dates;
    by default, the last day is the current one, and the first is the first day of its month. Raises ApiError (422) if
    one of them is invalid, and StoreUnavailable.
    """
    today = context.usage_days.today()
    dimensions = _checked("by", lambda: parse_dimensions("by", by or ("day,model" if tenant else "day,tenant,model")))
    last_day = _checked("to", lambda: parse_day("to", last)) if last else today
    first_day = _checked("from", lambda: parse_day("from", first)) if first else last_day.replace(day=1)
    days = _checked("from", lambda: days_between(first_day, last_day, most=MAX_DAYS))
    rows = (
        row
        for kept in (one.usage_days for one in context.cells.present())
        for day in days
        for row in (kept.read_all(day) if tenant is None else kept.read(tenant, day, today))
    )
    sums = sum_by(dimensions, rows)
    away = [one.cell for one in context.cells.all() if context.cells.is_away(one)]
    return ({"cells_away": away} if away else {}) | {
        "object": "usage",
        "tenant": tenant,
        "from": first_day.isoformat(),
        "to": last_day.isoformat(),
        "data": [dict(zip(dimensions, group, strict=True)) | amounts.as_dict() for group, amounts in sums.items()],
    }


def _checked(field: str, parse: Callable[[], T]) -> T:
    """Return what `parse` returns. Raises ApiError (422), which names the field, if it raises ConfigError."""
    try:
        return parse()
    except ConfigError as error:
        raise invalid_field(field, str(error)) from None
