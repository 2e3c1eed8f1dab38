"""Computes the present figures of all tenants and workers, and their rates between two snapshots, for operators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from shared.store.replies import Snapshot, TenantView, WorkerView
from shared.views.models import ModelLine, RoutesByPool, model_lines
from shared.views.shares import Sums

SortKey = Literal["tenant", "waiting", "running", "oldest", "tokens", "served", "refused"]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)


@dataclass(frozen=True)
class TenantLine:
    """One tenant. A rate is None if it is not known: more tenants have jobs than have counters of their own."""

    tenant: str
    waiting: int
    running: int
    #: The age of the oldest queued job that is not a batch job.
    oldest_ms: int | None
    #: Generated tokens of the jobs that ended, a second.
    tokens_per_s: float | None
    #: The tenant's part of the weighted tokens that all tenants were served, and the part that was due to it in the
    #: pools that it used, by its weight and its demand; None if it used none.
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
    #: Models that are not served first, then by name.
    models: list[ModelLine]


def make_frame(
    before: Snapshot, after: Snapshot, sort: SortKey, sums: Sums, routes: RoutesByPool = MappingProxyType({})
) -> Frame:
    """Return the frame for the later of two snapshots, both with stats, whose tenants are sorted by `sort`.

    `sums` has what tenants were served, and what was due to them; `routes` has the names of the routes of each pool.
    """
    seconds = (after.now_ms - before.now_ms) / 1000
    tokens = _growth(completion_tokens(before.stats), completion_tokens(after.stats))
    refused = _growth(_refusals(before.stats), _refusals(after.stats))

    def line(tenant: TenantView) -> TenantLine:
        name = tenant.name
        served, due = sums.part(name) or (None, None)
        return TenantLine(
            tenant=name,
            waiting=tenant.waiting,
            running=tenant.running,
            oldest_ms=tenant.oldest_age_ms,
            tokens_per_s=_rate(tokens.get(name), seconds),
            served=served,
            due=due,
            refused_per_min=_rate(refused.get(name), seconds / 60),
        )

    earlier = {worker.name: worker for worker in before.workers}
    workers = sorted(
        (_worker_line(earlier.get(worker.name), worker, seconds) for worker in after.workers),
        key=lambda one: (one.model, one.worker),
    )
    return Frame(
        now_ms=after.now_ms,
        inflight=after.inflight,
        max_inflight=after.max_inflight,
        waiting=after.waiting,
        running=after.running,
        draining=after.draining,
        tenants=sorted(map(line, after.tenants), key=ORDERS[sort]),
        workers=workers,
        models=model_lines(after, workers, routes),
    )


#: For each sort key, how the lines are ordered: the largest first, then by name.
ORDERS: dict[SortKey, Callable[[TenantLine], Any]] = {
    "tenant": lambda line: line.tenant,
    "waiting": lambda line: (-line.waiting, line.tenant),
    "running": lambda line: (-line.running, line.tenant),
    "oldest": lambda line: (-(line.oldest_ms or 0), line.tenant),
    "tokens": lambda line: (-(line.tokens_per_s or 0), line.tenant),
    "served": lambda line: (-(line.served or 0), line.tenant),
    "refused": lambda line: (-(line.refused_per_min or 0), line.tenant),
}


def _worker_line(before: WorkerView | None, worker: WorkerView, seconds: float) -> WorkerLine:
    generated = _number(worker.facts, "completion_tokens")
    since = None if before is None else max(0, generated - _number(before.facts, "completion_tokens"))
    return WorkerLine(
        worker=worker.name,
        model=worker.model,
        state=_state_of(worker),
        busy=worker.slots_busy,
        slots=worker.slots,
        paused=_number(worker.facts, "paused"),
        kv_used=worker.kv_used,
        tokens_per_s=_rate(since, seconds),
    )


def _state_of(worker: WorkerView) -> str:
    if not worker.live:
        return "silent"
    return "draining" if worker.draining else "loadable" if worker.is_loadable else "serving"


def _number(facts: Mapping[str, str], name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdecimal() else 0


def _growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return by how much each counter has grown. That of a store that was restored from a backup has fallen."""
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
