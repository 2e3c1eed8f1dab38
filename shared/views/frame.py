"""Computes what every tenant and worker has now, and their rates between two snapshots, for operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from shared.store.replies import Snapshot, TenantView, WorkerView

SortKey = Literal["tenant", "waiting", "running", "oldest", "tokens", "served", "refused"]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)


@dataclass(frozen=True)
class TenantLine:
    """One tenant. A rate is None if it is not known: more tenants have jobs than have counters of their own."""

    tenant: str
    waiting: int
    running: int
    #: The age of the oldest queued job that is no batch job.
    oldest_ms: int | None
    #: Generated tokens of the jobs that ended, a second.
    tokens_per_s: float | None
    #: The tenant's part of the weighted tokens that all tenants got, and the part that its weight gives it among the
    #: tenants with jobs or service; None if there was no service, or if the tenant has neither.
    served: float | None
    due: float | None
    refused_per_min: float | None


@dataclass(frozen=True)
class WorkerLine:
    """One worker."""

    worker: str
    model: str
    #: `serving`, `draining` or `silent`, if its heartbeats have stopped.
    state: str
    busy: int
    slots: int
    paused: int
    #: The part of the KV cells that is reserved for jobs, 0 to 1.
    kv_used: float
    #: Generated tokens a second, those of running jobs included.
    tokens_per_s: float | None


@dataclass(frozen=True)
class Frame:
    """Everything that `penstock top` shows at one time, and the console shows with more."""

    now_ms: int
    inflight: int
    max_inflight: int
    waiting: int
    running: int
    draining: bool
    tenants: list[TenantLine]
    workers: list[WorkerLine]


def make_frame(
    before: "Snapshot", after: "Snapshot", sort: SortKey, group_weights: Mapping[str, float] = MappingProxyType({})
) -> Frame:
    """Return the frame for the later of two snapshots, both with stats, whose tenants are sorted by `sort`.

    A group that `group_weights` does not name has the weight 1.
    """
    seconds = (after.now_ms - before.now_ms) / 1000
    earlier_mwt = {tenant.name: tenant.service_mwt for tenant in before.tenants}
    # A tenant that the earlier snapshot does not have may have got its service at any time.
    services = _growth(earlier_mwt, {t.name: t.service_mwt for t in after.tenants if t.name in earlier_mwt})
    # A service is divided by the tenant's weight (shared/lua/lib/service.lua).
    weighted_mwt = {t.name: services[t.name] * t.weight for t in after.tenants if t.name in services}
    served_mwt = sum(weighted_mwt.values())
    due = dues([tenant for tenant in after.tenants if _has_jobs(tenant) or services.get(tenant.name)], group_weights)
    tokens = _growth(completion_tokens(before.stats), completion_tokens(after.stats))
    refused = _growth(_refusals(before.stats), _refusals(after.stats))

    def line(tenant: "TenantView") -> TenantLine:
        name = tenant.name
        return TenantLine(
            tenant=name,
            waiting=tenant.waiting,
            running=tenant.running,
            oldest_ms=tenant.oldest_age_ms,
            tokens_per_s=_rate(tokens.get(name), seconds),
            served=weighted_mwt.get(name, 0) / served_mwt if served_mwt else None,
            due=due.get(name),
            refused_per_min=_rate(refused.get(name), seconds / 60),
        )

    earlier = {worker.name: worker for worker in before.workers}
    return Frame(
        now_ms=after.now_ms,
        inflight=after.inflight,
        max_inflight=after.max_inflight,
        waiting=after.waiting,
        running=after.running,
        draining=after.draining,
        tenants=sorted(map(line, after.tenants), key=_ORDERS[sort]),
        workers=sorted(
            (_worker_line(earlier.get(worker.name), worker, seconds) for worker in after.workers),
            key=lambda one: (one.model, one.worker),
        ),
    )


#: For each sort key, how the lines are ordered: the largest first, then by name.
_ORDERS: dict[SortKey, Callable[[TenantLine], Any]] = {
    "tenant": lambda line: line.tenant,
    "waiting": lambda line: (-line.waiting, line.tenant),
    "running": lambda line: (-line.running, line.tenant),
    "oldest": lambda line: (-(line.oldest_ms or 0), line.tenant),
    "tokens": lambda line: (-(line.tokens_per_s or 0), line.tenant),
    "served": lambda line: (-(line.served or 0), line.tenant),
    "refused": lambda line: (-(line.refused_per_min or 0), line.tenant),
}


def dues(active: Sequence["TenantView"], group_weights: Mapping[str, float]) -> dict[str, float]:
    """Return the part of all service that is due to each of these tenants; a group's part is divided among its own.

    A group that `group_weights` does not name has the weight 1, and so has a tenant whose weight was spoiled.
    """
    owners: dict[str, float] = {}
    in_group: dict[str, float] = {}
    for tenant in active:
        if tenant.group is None:
            owners[tenant.name] = _weight(tenant)
        else:
            owners[f"@{tenant.group}"] = group_weights.get(tenant.group, 1.0)
            in_group[tenant.group] = in_group.get(tenant.group, 0.0) + _weight(tenant)
    total = sum(owners.values())

    def due(tenant: "TenantView") -> float:
        if tenant.group is None:
            return owners[tenant.name] / total
        return owners[f"@{tenant.group}"] / total * _weight(tenant) / in_group[tenant.group]

    return {tenant.name: due(tenant) for tenant in active}


def _weight(tenant: "TenantView") -> float:
    return tenant.weight if tenant.weight > 0 else 1.0


def _has_jobs(tenant: "TenantView") -> bool:
    return tenant.waiting > 0 or tenant.running > 0


def _worker_line(before: "WorkerView | None", worker: "WorkerView", seconds: float) -> WorkerLine:
    generated = _number(worker.facts, "completion_tokens")
    since = None if before is None else max(0, generated - _number(before.facts, "completion_tokens"))
    return WorkerLine(
        worker=worker.name,
        model=worker.model,
        state="silent" if not worker.live else "draining" if worker.draining else "serving",
        busy=worker.slots_busy,
        slots=worker.slots,
        paused=_number(worker.facts, "paused"),
        kv_used=1 - worker.cells_free / worker.cells if worker.cells else 0.0,
        tokens_per_s=_rate(since, seconds),
    )


def _number(facts: Mapping[str, str], name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdecimal() else 0


def _growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return by how much each value has grown. A service falls when a job ends that cost less than was charged."""
    return {name: max(0, value - before.get(name, 0)) for name, value in after.items()}


def completion_tokens(stats: Mapping[str, int]) -> dict[str, int]:
    """Return the generated tokens of each tenant with a label of its own (shared/lua/settle.lua)."""
    return _by_label(stats, "tokens", "|completion")


def _refusals(stats: Mapping[str, int]) -> dict[str, int]:
    return _by_label(stats, "refused", "")


def _by_label(stats: Mapping[str, int], counter: str, last: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, value in stats.items():
        first, _, rest = name.partition("|")
        if first == counter and rest.endswith(last):
            label = rest.partition("|")[0]
            sums[label] = sums.get(label, 0) + value
    return sums


def _rate(growth: int | None, periods: float) -> float | None:
    return None if growth is None or periods <= 0 else growth / periods
