"""Convert a snapshot of the store into the Prometheus fleet metrics, which are defined in shared/metrics/fleet.py.

There may be more than 15,000 samples, which take a tenth of a second or more. Other greenlets of the process run in
between (`with_pauses`).
"""

import heapq
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import redis
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from shared.accounts.budgets import Budget, Budgets
from shared.accounts.groups import Groups
from shared.clock import Clock
from shared.metrics.fleet import ADMISSION, BY_WORKER, COUNTED, GAUGES
from shared.metrics.spec import BUCKETS_MS, MAX_TENANTS, OTHER, MetricSpec
from shared.store import keys
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from shared.store.replies import Snapshot, TenantView, WorkerView
from shared.store.store import Store
from shared.store.webhooks import NONE_PENDING, Pending, Webhooks
from shared.views.shares import Shares
from web.http.process_metrics import ProcessMetrics
from web.runtime.shared_answer import SharedAnswer

#: After this many fields or samples, which take 1 or 2 ms, other greenlets run. A series of a histogram has 20 samples.
_EVERY, _EVERY_SERIES = 200, 10
#: How long they may run, in seconds. After a pause of 0, gevent may run this greenlet 50 times before it looks for new
#: requests.
_PAUSE_S = 0.0001

#: So many budgets have series: those of a tenant's or a group's day and month count singly.
MAX_BUDGETS = 100

T = TypeVar("T")
Format = Literal["text", "openmetrics"]


def with_pauses(items: Iterable[T], every: int = _EVERY) -> Iterator[T]:
    """Yield the items, and let other greenlets run after every `every` items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            time.sleep(_PAUSE_S)


class _Samples(list[Sample]):
    def __iter__(self) -> Iterator[Sample]:
        return with_pauses(super().__iter__())


#: The labels and the value of each field of the `stats` hash, by the first part of the field's name.
_Fields = dict[str, list[tuple[list[str], int]]]


class ReadFamilies(Collector):
    """Families of metrics that were read once. Other greenlets run while an encoder iterates over their samples."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)
        for family in self._families:
            family.samples = _Samples(family.samples)

    def collect(self) -> Iterable[Metric]:
        """Return all families."""
        return self._families


def encoded(families: Collector, page_format: Format) -> bytes:
    """Return the page of these metrics in this format."""
    if page_format == "text":
        return generate_latest(families)
    page: bytes = openmetrics.generate_latest(families)  # type: ignore[no-untyped-call]  # has no types
    return page


def fleet_families(
    snapshot: Snapshot,
    budgets: Sequence[Budget] = (),
    webhooks: Pending = NONE_PENDING,
    shares: Mapping[str, float] = MappingProxyType({}),
    exemplars: Mapping[str, Exemplar] = MappingProxyType({}),
) -> Iterator[Metric]:
    """Yield the metrics of one snapshot, of these budgets, webhooks and shares, for one scrape.

    `exemplars` are by the names of the fields in the `stats` hash, without their `h|`.
    """
    counters, histograms = _by_name(snapshot.stats)
    for spec in COUNTED:
        if spec.kind == "counter":
            yield _counter(spec, counters.get(spec.field, []))
        else:
            yield _histogram(spec, histograms.get(spec.field, []), exemplars)
    yield _admission(counters)
    for spec in BY_WORKER:
        yield _by_worker(spec, snapshot.workers)
    values = _gauges(snapshot) | _budget_gauges(budgets)
    values |= _webhook_gauges(webhooks, snapshot.now_ms)
    values["penstock_tenant_share_ratio"] = [([label], ratio) for label, ratio in sorted(shares.items())]
    for spec in GAUGES:
        family = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, value in values[spec.name]:
            family.add_metric(labels, value)
        yield family


def _by_name(stats: dict[str, int]) -> tuple[_Fields, _Fields]:
    """Return the fields `<name>|<value>|…` of counters and `h|<name>|<value>|…|<bound>` of histograms, by name."""
    counters: _Fields = {}
    histograms: _Fields = {}
    for field, value in with_pauses(stats.items()):
        name, *parts = field.split("|")
        if name == "h" and parts:
            name, *parts = parts
            histograms.setdefault(name, []).append((parts, value))
        else:
            counters.setdefault(name, []).append((parts, value))
    return counters, histograms


def _label_values(spec: MetricSpec, parts: list[str]) -> list[str] | None:
    """Return the label values in the name of a stats field, or None if they do not match the metric's labels.

    A model's name may itself contain `|`, so surplus parts are added to the value of the label `model_name`.
    """
    surplus = len(parts) - len(spec.labels)
    if surplus < 0 or (surplus and "model_name" not in spec.labels):
        return None
    at = spec.labels.index("model_name") if surplus else 0
    return [*parts[:at], "|".join(parts[at : at + surplus + 1]), *parts[at + surplus + 1 :]] if surplus else parts


def _counter(spec: MetricSpec, fields: list[tuple[list[str], int]]) -> CounterMetricFamily:
    family = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    if not spec.labels:
        family.add_metric([], sum(value for parts, value in fields if not parts))
        return family
    counted = {
        tuple(labels): value
        for parts, value in with_pauses(fields)
        if parts and (labels := _label_values(spec, parts)) is not None
    }
    others = dict.fromkeys(labels[:-1] for labels in counted) if len(spec.labels) > 1 else {(): None}
    zeros = {(*other, last): 0 for other in others for last in spec.initial} if spec.initial else {}
    for label_values, value in with_pauses((zeros | counted).items()):
        family.add_metric(label_values, value)
    return family


def _by_worker(spec: MetricSpec, workers: list[WorkerView]) -> CounterMetricFamily:
    family = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    for worker in workers:
        if spec.field in worker.facts:
            family.add_metric([worker.name], _number(worker.facts[spec.field]))
    return family


def _number(fact: str) -> float:
    """Convert a worker's fact to a number. Return 0 if the fact is not a number, so that the scrape succeeds."""
    try:
        return float(fact)
    except ValueError:
        return 0.0


def _admission(counters: _Fields) -> CounterMetricFamily:
    family = CounterMetricFamily(ADMISSION.name, ADMISSION.help, labels=ADMISSION.labels)
    for labels, value in counters.get("refused", []):
        if len(labels) == 2:
            family.add_metric([labels[0], "refused", labels[1]], value)
    for labels, value in counters.get("admitted", []):
        if len(labels) == 1:
            family.add_metric([labels[0], "admitted", ""], value)
    return family


#: For each bucket of a histogram, the end of its field's name in the `stats` hash and its bound in seconds.
_BOUNDS = [*((str(upper_ms), repr(upper_ms / 1000)) for upper_ms in BUCKETS_MS), ("inf", "+Inf")]


def _histogram(
    spec: MetricSpec, fields: list[tuple[list[str], int]], exemplars: Mapping[str, Exemplar]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
    series: dict[tuple[str, ...], dict[str, int]] = {}
    for parts, value in with_pauses(fields):
        labels = _label_values(spec, parts[:-1]) if parts else None
        if labels is not None:
            series.setdefault(tuple(labels), {})[parts[-1]] = value
    for label_values, counts in with_pauses(sorted(series.items()), _EVERY_SERIES):
        cumulative = 0
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for upper, upper_s in _BOUNDS:
            cumulative += counts.get(upper, 0)
            newest = exemplars.get("|".join((spec.field, *label_values, upper)))
            buckets.append((upper_s, cumulative) if newest is None else (upper_s, cumulative, newest))
        sum_s = counts.get("sum", 0) / 1000 + counts.get("sum_us", 0) / 1_000_000
        family.add_metric(list(label_values), buckets=buckets, sum_value=sum_s)
    return family


def _gauges(snapshot: Snapshot) -> dict[str, Iterable[tuple[list[str], float]]]:
    live = [worker for worker in snapshot.workers if worker.live]
    tenants = snapshot.tenants[:MAX_TENANTS]
    return {
        "penstock_inflight": [([], snapshot.inflight)],
        "penstock_inflight_limit": [([], snapshot.max_inflight)],
        "penstock_jobs_waiting": _by_tenant(snapshot, tenants, "waiting"),
        "penstock_jobs_running": _by_tenant(snapshot, tenants, "running"),
        "penstock_paused_jobs": _paused_by_model(live),
        "penstock_oldest_job_age_seconds": [
            ([tenant.name], tenant.oldest_age_ms / 1000) for tenant in tenants if tenant.oldest_age_ms is not None
        ],
        "penstock_workers": [([], snapshot.live_workers)],
        "penstock_slots": [([], snapshot.live_slots)],
        "penstock_pool_live": [
            ([model], model in snapshot.live_models) for model in sorted({*snapshot.models, *snapshot.live_models})
        ],
        "penstock_pool_backlog_seconds": [([model], seconds) for model, seconds in sorted(snapshot.backlogs_s.items())],
        "penstock_pool_busy_ratio": [([model], ratio) for model, ratio in sorted(snapshot.busy_ratios.items())],
        "penstock_clock_ahead_seconds": [([], snapshot.ahead_ms / 1000)],
        "penstock_pool_tier": [([model], tier) for model, tier in sorted(snapshot.tiers.items())],
        "penstock_capacity_tokens_per_second": [([], snapshot.capacity_wtps)],
        "penstock_worker_slots_busy": [([worker.name], worker.slots_busy) for worker in live],
        "penstock_worker_kv_used_ratio": [([worker.name], worker.kv_used) for worker in live if worker.cells > 0],
    }


def _budget_gauges(budgets: Sequence[Budget]) -> dict[str, Iterable[tuple[list[str], float]]]:
    """Return the gauges of at most MAX_BUDGETS budgets: those with the largest used part."""
    shown = heapq.nlargest(MAX_BUDGETS, budgets, key=lambda budget: budget.used_tokens / budget.max_tokens)
    labels = [[budget.kind, budget.name, budget.period] for budget in shown]
    return {
        "penstock_budget_tokens": [(labels[i], budget.max_tokens) for i, budget in enumerate(shown)],
        "penstock_budget_used_tokens": [(labels[i], budget.used_tokens) for i, budget in enumerate(shown)],
    }


def _webhook_gauges(webhooks: Pending, now_ms: int) -> dict[str, Iterable[tuple[list[str], float]]]:
    age_ms = 0 if webhooks.oldest_ms is None else max(0, now_ms - webhooks.oldest_ms)
    return {
        "penstock_webhooks_pending": [([], webhooks.count)],
        "penstock_oldest_webhook_age_seconds": [([], age_ms / 1000)],
    }


def _paused_by_model(workers: list[WorkerView]) -> list[tuple[list[str], float]]:
    paused: dict[str, float] = {}
    for worker in workers:
        paused[worker.model] = paused.get(worker.model, 0) + _number(worker.facts.get("paused", "0"))
    return [([model], number) for model, number in sorted(paused.items())]


def _by_tenant(
    snapshot: Snapshot, tenants: list[TenantView], state: Literal["waiting", "running"]
) -> list[tuple[list[str], float]]:
    # The snapshot counts jobs per tenant, not per model, so the label names the model only if just one is served.
    model = snapshot.models[0] if len(snapshot.models) == 1 else ""
    counts = {tenant.name: tenant.waiting if state == "waiting" else tenant.running for tenant in tenants}
    rest = (snapshot.waiting if state == "waiting" else snapshot.running) - sum(counts.values())
    if rest > 0:
        # A tenant may be named so too.
        counts[OTHER] = counts.get(OTHER, 0) + rest
    return [([name, model], number) for name, number in sorted(counts.items())]


#: How old the budgets may be, in seconds, about the time between two scrapes: they are in the records of all tenants.
_BUDGETS_AGE_S = 15.0

CONTENT_TYPES: dict[Format, str] = {
    "text": CONTENT_TYPE_PLAIN_0_0_4,
    "openmetrics": openmetrics.CONTENT_TYPE_LATEST,
}


class FleetPage:
    """Reads and renders the metrics of the whole system. Scrapes of the same second share one page."""

    def __init__(self, store: Store, metrics: ProcessMetrics, clock: Clock) -> None:
        self._store, self._metrics = store, metrics
        budgets, self._webhooks = Budgets(store.client), Webhooks(store.client)
        self._shares, self._groups = Shares(), Groups(store.client)
        self._budgets = SharedAnswer(budgets.read_all, clock)
        self.families = SharedAnswer(self._read, clock)
        self._pages: dict[Format, SharedAnswer[bytes]] = {
            each: SharedAnswer(partial(self._encode, each), clock) for each in CONTENT_TYPES
        }

    def render(self, page_format: Format) -> bytes:
        """Return the page; its values are at most two seconds old, budgets 17. Raises StoreUnavailable."""
        return self._pages[page_format].get()

    def _encode(self, page_format: Format) -> bytes:
        return encoded(self.families.get(), page_format)

    def _read(self) -> ReadFamilies:
        with self._metrics.time_script("snapshot"):
            snapshot = self._store.snapshot(tenants=MAX_TENANTS, stats=True)
        shares = self._shares.add(snapshot, self._groups.weights(snapshot.groups)).ratios()
        webhooks, exemplars = self._webhooks.pending(), read_exemplars(self._store.client)
        budgets = self._budgets.get(_BUDGETS_AGE_S)
        return ReadFamilies(fleet_families(snapshot, budgets, webhooks, shares, exemplars))


#: The text that observe in shared/lua/lib/ledgers/stats.lua writes: the job's id, its time in µs, and when it was
#: observed, in ms.
_STORED = re.compile(r"([\w-]{1,64}) (\d{1,15}) (\d{1,15})\Z", re.ASCII)


def read_exemplars(client: redis.Redis) -> dict[str, Exemplar]:
    """Return the exemplars by the names of their buckets. Raises StoreUnavailable.

    Values that another program has put in their place are left out.
    """
    try:
        with store_faults(client):
            stored: Any = client.hgetall(keys.exemplars())
    except redis.ResponseError:
        return {}
    found = {}
    for bucket, job in with_pauses(stored.items()):
        match = _STORED.match(text(job))
        if match is not None:
            job_id, time_us, at_ms = match.groups()
            found[text(bucket)] = Exemplar({"job_id": job_id}, int(time_us) / 1_000_000, int(at_ms) / 1000)
    return found
