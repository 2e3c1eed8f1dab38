"""Every metric: name, labels, help, buckets; none is made elsewhere.

Fleet metrics are read out of the store's counters (fields written by shared/lua/lib/stats.lua), so
that any ingress answers the same; process metrics are those of one ingress.
When you add one: a row here, its field in a script, and its line in docs/http.md.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shared.answers import Snapshot, TenantView, WorkerView

#: Upper ends of all histograms in ms, as shared/lua/lib/stats.lua has them; a test compares.
BUCKETS_MS = (
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    20_000,
    40_000,
    80_000,
    160_000,
    320_000,
    640_000,
)
#: So many tenants get a label of their own in gauges, the most recently seen; the rest is `other`.
MAX_TENANTS = 50
OTHER = "other"


@dataclass(frozen=True)
class Row:
    """One metric. `field` is the first part of its fields in the stats; labels follow in the fields' order."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    field: str = ""


#: Counters and histograms, from the stats. Prometheus adds `_total` to counters.
COUNTED: tuple[Row, ...] = (
    Row("penstock_executed", "counter", (), "jobs whose first claim happened", "executed"),
    Row("penstock_yielded", "counter", (), "answers with status yield", "yielded"),
    Row("penstock_jobs", "counter", ("tenant", "model_name", "outcome"), "ended jobs", "ended"),
    Row("penstock_tokens", "counter", ("tenant", "model_name", "kind"), "prompt, cached, completion tokens", "tokens"),
    Row(
        "penstock_wasted_tokens",
        "counter",
        ("tenant", "reason"),
        "tokens computed for jobs that did not end well",
        "wasted",
    ),
    Row(
        "penstock_offered_tokens",
        "counter",
        (),
        "prompt and max_tokens of all jobs that were offered",
        "offered_tokens",
    ),
    Row("penstock_leases_reclaimed", "counter", (), "leases that lapsed and were taken back", "reclaimed"),
    Row("penstock_requeued", "counter", (), "jobs that went back to their list", "requeued"),
    Row("penstock_degraded", "counter", ("tenant", "what"), "jobs that were changed to fit", "degraded"),
    Row(
        "penstock_queue_wait_seconds",
        "histogram",
        ("tenant", "model_name"),
        "from admission to first claim",
        "queue_wait",
    ),
    Row(
        "penstock_time_to_first_token_seconds",
        "histogram",
        ("tenant", "model_name", "size"),
        "from claim to first token; size of the prompt: s below 256, m below 2048 tokens, l",
        "time_to_first_token",
    ),
    Row(
        "penstock_time_per_output_token_seconds",
        "histogram",
        ("tenant", "model_name"),
        "between two tokens of a job",
        "time_per_output_token",
    ),
    Row(
        "penstock_request_duration_seconds",
        "histogram",
        ("outcome", "tenant", "model_name"),
        "from admission to the end",
        "request_duration",
    ),
    Row("penstock_retry_hint_seconds", "histogram", (), "hints given with refusals", "retry_hint"),
    Row(
        "penstock_retry_hint_error_seconds",
        "histogram",
        (),
        "how far from the promise those who came back were taken",
        "retry_hint_error",
    ),
    Row(
        "penstock_prediction_error_seconds",
        "histogram",
        (),
        "how far from its predicted end a job succeeded",
        "prediction_error",
    ),
)

#: Made of two counters, `admitted|<tenant>` and `refused|<tenant>|<reason>`.
ADMISSION = Row("penstock_admission", "counter", ("tenant", "decision", "reason"), "the door's answers", "")

#: Counted by each worker since its start; `field` is the fact of its beat.
BY_WORKER: tuple[Row, ...] = (
    Row(
        "penstock_worker_idle_slot_steps",
        "counter",
        ("worker",),
        "steps with a free slot while a job waited for one",
        "idle_slot_steps",
    ),
    Row(
        "penstock_dead_tokens",
        "counter",
        ("worker",),
        "tokens computed after the deadline or the cancel",
        "dead_tokens",
    ),
)

GAUGES: tuple[Row, ...] = (
    Row("penstock_inflight", "gauge", (), "admitted jobs not yet ended"),
    Row("penstock_inflight_limit", "gauge", (), "the most of them"),
    Row("penstock_jobs_waiting", "gauge", ("tenant", "model_name"), "jobs in their tenant's list"),
    Row("penstock_jobs_running", "gauge", ("tenant", "model_name"), "jobs under a lease"),
    Row("penstock_oldest_job_age_seconds", "gauge", ("tenant",), "age of the tenant's oldest waiting job"),
    Row("penstock_workers", "gauge", (), "live workers"),
    Row("penstock_slots", "gauge", (), "slots of live workers"),
    Row("penstock_pool_tier", "gauge", ("model_name",), "how hard a pool is pressed, 0 to 2"),
    Row("penstock_capacity_tokens_per_second", "gauge", (), "weighted tokens a second that live workers measured"),
    Row("penstock_worker_slots_busy", "gauge", ("worker",), "slots that run a job"),
    Row("penstock_worker_kv_used_ratio", "gauge", ("worker",), "share of KV cells in use"),
)

#: Of one ingress or gate; prometheus-client keeps them (web/telemetry.py, web/gate_server.py).
HTTP_REQUESTS = Row("penstock_http_requests", "counter", ("route", "method", "status"), "answered requests")
HTTP_SECONDS = Row("penstock_http_request_seconds", "histogram", ("route", "method"), "until the answer began")
SCRIPT_SECONDS = Row("penstock_store_script_seconds", "histogram", ("script",), "round trips to the store, by script")
STORELESS = Row("penstock_refused_without_store", "counter", (), "yields given because the store did not answer")
WAITING_CALLS = Row("penstock_followed_jobs", "gauge", (), "jobs whose end or events somebody waits for here")
GATE_FRAMES = Row("penstock_gate_frames", "counter", ("status",), "frames that the TCP gate said")
GATE_CONNECTIONS = Row("penstock_gate_connections", "gauge", (), "open connections of the TCP gate")
BUILD_INFO = Row("penstock_build_info", "gauge", ("version", "python"), "always 1")
PROCESS: tuple[Row, ...] = (
    HTTP_REQUESTS,
    HTTP_SECONDS,
    SCRIPT_SECONDS,
    STORELESS,
    WAITING_CALLS,
    GATE_FRAMES,
    GATE_CONNECTIONS,
    BUILD_INFO,
)

FLEET: tuple[Row, ...] = (*COUNTED, ADMISSION, *BY_WORKER, *GAUGES)
ALL: tuple[Row, ...] = (*FLEET, *PROCESS)


class FleetCollector(Collector):
    """One snapshot as metric families."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """All fleet metrics."""
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
    """A registry that renders one snapshot, made for one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(snapshot))
    return registry


def _labels(row: Row, field: str) -> list[str] | None:
    """The label values in a field after its first part; a `|` in a model's name stays in it. None: not this row's."""
    parts = field.split("|")[1:]
    surplus = len(parts) - len(row.labels)
    if surplus < 0 or (surplus and "model_name" not in row.labels):
        return None
    at = row.labels.index("model_name") if surplus else 0
    return [*parts[:at], "|".join(parts[at : at + surplus + 1]), *parts[at + surplus + 1 :]] if surplus else parts


def _counter(row: Row, stats: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(row.name, row.help, labels=row.labels)
    if not row.labels:
        family.add_metric([], stats.get(row.field, 0))
        return family
    for field, value in stats.items():
        labels = _labels(row, field) if field.startswith(f"{row.field}|") else None
        if labels is not None:
            family.add_metric(labels, value)
    return family


def _by_worker(row: Row, workers: list[WorkerView]) -> CounterMetricFamily:
    family = CounterMetricFamily(row.name, row.help, labels=row.labels)
    for worker in workers:
        if row.field in worker.facts:
            family.add_metric([worker.name], _number(worker.facts[row.field]))
    return family


def _number(fact: str) -> float:
    """A worker's fact as a number; 0 for what is none, for a metric never fails a scrape."""
    try:
        return float(fact)
    except ValueError:
        return 0.0


def _admission(stats: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(ADMISSION.name, ADMISSION.help, labels=ADMISSION.labels)
    for field, value in stats.items():
        what, *rest = field.split("|")
        if what == "admitted" and len(rest) == 1:
            family.add_metric([rest[0], "admitted", ""], value)
        elif what == "refused" and len(rest) == 2:
            family.add_metric([rest[0], "refused", rest[1]], value)
    return family


def _histogram(row: Row, stats: dict[str, int]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(row.name, row.help, labels=row.labels)
    start = f"h|{row.field}|"
    series: dict[tuple[str, ...], dict[str, int]] = {}
    for field, value in stats.items():
        if field.startswith(start):
            inner, _, upper = field.removeprefix("h|").rpartition("|")
            labels = _labels(row, inner)
            if labels is not None:
                series.setdefault(tuple(labels), {})[upper] = value
    for labels_of, counts in sorted(series.items()):
        running = 0
        buckets: list[tuple[str, float]] = []
        for upper_ms in BUCKETS_MS:
            running += counts.get(str(upper_ms), 0)
            buckets.append((repr(upper_ms / 1000), running))
        buckets.append(("+Inf", running + counts.get("inf", 0)))
        family.add_metric(list(labels_of), buckets=buckets, sum_value=counts.get("sum", 0) / 1000)
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
    snapshot: Snapshot, tenants: list[TenantView], what: Literal["waiting", "running"]
) -> list[tuple[list[str], float]]:
    # The snapshot counts by tenant; where one model is served, all of it is that model's.
    model = snapshot.models[0] if len(snapshot.models) == 1 else ""
    counts = {tenant.name: tenant.waiting if what == "waiting" else tenant.running for tenant in tenants}
    rest = (snapshot.waiting if what == "waiting" else snapshot.running) - sum(counts.values())
    rows: list[tuple[list[str], float]] = [([name, model], number) for name, number in sorted(counts.items())]
    if rest > 0:
        rows.append(([OTHER, model], rest))
    return rows
