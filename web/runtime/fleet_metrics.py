"""Convert a snapshot of the store into the Prometheus fleet metrics, which are defined in shared/metrics.py."""

from collections.abc import Iterable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shared.metrics import ADMISSION, BUCKETS_MS, BY_WORKER, COUNTED, GAUGES, MAX_TENANTS, OTHER, MetricSpec
from shared.store.replies import Snapshot, TenantView, WorkerView


class FleetCollector(Collector):
    """A Prometheus collector that makes its metrics from one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield all fleet metrics."""
        stats = self._snapshot.stats
        for row in COUNTED:
            if row.kind == "counter":
                yield _counter(row, stats)
            else:
                yield _histogram(row, stats)
        yield _admission(stats)
        for row in BY_WORKER:
            yield _by_worker(row, self._snapshot.workers)
        values = _gauges(self._snapshot)
        for row in GAUGES:
            family = GaugeMetricFamily(row.name, row.help, labels=row.labels)
            for labels, value in values[row.name]:
                family.add_metric(labels, value)
            yield family


def fleet_registry(snapshot: Snapshot) -> CollectorRegistry:
    """Return a registry with the metrics of one snapshot, to answer one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(snapshot))
    return registry


def _label_values(row: MetricSpec, field: str) -> list[str] | None:
    """Return the label values in the name of a stats field, or None if they do not match the metric's labels.

    The name is `field|value|value`. A model's name may itself contain `|`, so surplus parts are added to the value of
    the label `model_name`.
    """
    parts = field.split("|")[1:]
    surplus = len(parts) - len(row.labels)
    if surplus < 0 or (surplus and "model_name" not in row.labels):
        return None
    at = row.labels.index("model_name") if surplus else 0
    return [*parts[:at], "|".join(parts[at : at + surplus + 1]), *parts[at + surplus + 1 :]] if surplus else parts


def _counter(row: MetricSpec, stats: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(row.name, row.help, labels=row.labels)
    if not row.labels:
        family.add_metric([], stats.get(row.field, 0))
        return family
    for field, value in stats.items():
        labels = _label_values(row, field) if field.startswith(f"{row.field}|") else None
        if labels is not None:
            family.add_metric(labels, value)
    return family


def _by_worker(row: MetricSpec, workers: list[WorkerView]) -> CounterMetricFamily:
    family = CounterMetricFamily(row.name, row.help, labels=row.labels)
    for worker in workers:
        if row.field in worker.facts:
            family.add_metric([worker.name], _number(worker.facts[row.field]))
    return family


def _number(fact: str) -> float:
    """Convert a worker's fact to a number. Return 0 if the fact is not a number, so that the scrape succeeds."""
    try:
        return float(fact)
    except ValueError:
        return 0.0


def _admission(stats: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(ADMISSION.name, ADMISSION.help, labels=ADMISSION.labels)
    for field, value in stats.items():
        decision, *labels = field.split("|")
        if decision == "admitted" and len(labels) == 1:
            family.add_metric([labels[0], "admitted", ""], value)
        elif decision == "refused" and len(labels) == 2:
            family.add_metric([labels[0], "refused", labels[1]], value)
    return family


def _histogram(row: MetricSpec, stats: dict[str, int]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(row.name, row.help, labels=row.labels)
    prefix = f"h|{row.field}|"
    series: dict[tuple[str, ...], dict[str, int]] = {}
    for field, value in stats.items():
        if field.startswith(prefix):
            inner, _, upper = field.removeprefix("h|").rpartition("|")
            labels = _label_values(row, inner)
            if labels is not None:
                series.setdefault(tuple(labels), {})[upper] = value
    for label_values, counts in sorted(series.items()):
        cumulative = 0
        buckets: list[tuple[str, float]] = []
        for upper_ms in BUCKETS_MS:
            cumulative += counts.get(str(upper_ms), 0)
            buckets.append((repr(upper_ms / 1000), cumulative))
        buckets.append(("+Inf", cumulative + counts.get("inf", 0)))
        family.add_metric(list(label_values), buckets=buckets, sum_value=counts.get("sum", 0) / 1000)
    return family


def _gauges(snapshot: Snapshot) -> dict[str, Iterable[tuple[list[str], float]]]:
    live = [worker for worker in snapshot.workers if worker.live]
    tenants = snapshot.tenants[:MAX_TENANTS]
    return {
        "penstock_inflight": [([], snapshot.inflight)],
        "penstock_inflight_limit": [([], snapshot.max_inflight)],
        "penstock_jobs_waiting": _by_tenant(snapshot, tenants, "waiting"),
        "penstock_jobs_running": _by_tenant(snapshot, tenants, "running"),
        "penstock_oldest_job_age_seconds": [
            ([tenant.name], tenant.oldest_age_ms / 1000) for tenant in tenants if tenant.oldest_age_ms is not None
        ],
        "penstock_workers": [([], len(live))],
        "penstock_slots": [([], sum(worker.slots for worker in live))],
        "penstock_pool_tier": [([model], tier) for model, tier in sorted(snapshot.tiers.items())],
        "penstock_capacity_tokens_per_second": [([], sum(_number(w.facts.get("mu_wtps", "0")) for w in live))],
        "penstock_worker_slots_busy": [([worker.name], worker.slots_busy) for worker in live],
        "penstock_worker_kv_used_ratio": [
            ([worker.name], 1 - worker.cells_free / worker.cells) for worker in live if worker.cells > 0
        ],
    }


def _by_tenant(
    snapshot: Snapshot, tenants: list[TenantView], state: Literal["waiting", "running"]
) -> list[tuple[list[str], float]]:
    # The snapshot counts jobs per tenant, not per model, so the label names the model only if just one is served.
    model = snapshot.models[0] if len(snapshot.models) == 1 else ""
    counts = {tenant.name: tenant.waiting if state == "waiting" else tenant.running for tenant in tenants}
    rest = (snapshot.waiting if state == "waiting" else snapshot.running) - sum(counts.values())
    rows: list[tuple[list[str], float]] = [([name, model], number) for name, number in sorted(counts.items())]
    if rest > 0:
        rows.append(([OTHER, model], rest))
    return rows
