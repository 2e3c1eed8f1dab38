"""Every metric: name, labels, help, buckets; none is made elsewhere.

Fleet metrics are read out of the store's counters (fields written by shared/lua/lib/stats.lua), so
that any ingress answers the same; process metrics are those of one ingress.
When you add one: a row here, its field in a script, and its line in docs/http.md.
"""

from dataclasses import dataclass
from typing import Literal

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
class MetricSpec:
    """One metric. `field` is the first part of its fields in the stats; labels follow in the fields' order."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    field: str = ""


#: Counters and histograms, from the stats. Prometheus adds `_total` to counters.
COUNTED: tuple[MetricSpec, ...] = (
    MetricSpec("penstock_executed", "counter", (), "jobs whose first claim happened", "executed"),
    MetricSpec("penstock_yielded", "counter", (), "answers with status yield", "yielded"),
    MetricSpec("penstock_jobs", "counter", ("tenant", "model_name", "outcome"), "ended jobs", "ended"),
    MetricSpec(
        "penstock_tokens", "counter", ("tenant", "model_name", "kind"), "prompt, cached, completion tokens", "tokens"
    ),
    MetricSpec(
        "penstock_wasted_tokens",
        "counter",
        ("tenant", "reason"),
        "tokens computed for jobs that did not end well",
        "wasted",
    ),
    MetricSpec(
        "penstock_offered_tokens",
        "counter",
        (),
        "prompt and max_tokens of all jobs that were offered",
        "offered_tokens",
    ),
    MetricSpec("penstock_leases_reclaimed", "counter", (), "leases that lapsed and were taken back", "reclaimed"),
    MetricSpec("penstock_requeued", "counter", (), "jobs that went back to their list", "requeued"),
    MetricSpec("penstock_degraded", "counter", ("tenant", "what"), "jobs that were changed to fit", "degraded"),
    MetricSpec(
        "penstock_queue_wait_seconds",
        "histogram",
        ("tenant", "model_name"),
        "from admission to first claim",
        "queue_wait",
    ),
    MetricSpec(
        "penstock_time_to_first_token_seconds",
        "histogram",
        ("tenant", "model_name", "size"),
        "from claim to first token; size of the prompt: s below 256, m below 2048 tokens, l",
        "time_to_first_token",
    ),
    MetricSpec(
        "penstock_time_per_output_token_seconds",
        "histogram",
        ("tenant", "model_name"),
        "between two tokens of a job",
        "time_per_output_token",
    ),
    MetricSpec(
        "penstock_request_duration_seconds",
        "histogram",
        ("outcome", "tenant", "model_name"),
        "from admission to the end",
        "request_duration",
    ),
    MetricSpec("penstock_retry_hint_seconds", "histogram", (), "hints given with refusals", "retry_hint"),
    MetricSpec(
        "penstock_retry_hint_error_seconds",
        "histogram",
        (),
        "how far from the promise those who came back were taken",
        "retry_hint_error",
    ),
    MetricSpec(
        "penstock_prediction_error_seconds",
        "histogram",
        (),
        "how far from its predicted end a job succeeded",
        "prediction_error",
    ),
)

#: Made of two counters, `admitted|<tenant>` and `refused|<tenant>|<reason>`.
ADMISSION = MetricSpec("penstock_admission", "counter", ("tenant", "decision", "reason"), "the door's answers", "")

#: Counted by each worker since its start; `field` is the fact of its beat.
BY_WORKER: tuple[MetricSpec, ...] = (
    MetricSpec(
        "penstock_worker_idle_slot_steps",
        "counter",
        ("worker",),
        "steps with a free slot while a job waited for one",
        "idle_slot_steps",
    ),
    MetricSpec(
        "penstock_dead_tokens",
        "counter",
        ("worker",),
        "tokens computed after the deadline or the cancel",
        "dead_tokens",
    ),
)

GAUGES: tuple[MetricSpec, ...] = (
    MetricSpec("penstock_inflight", "gauge", (), "admitted jobs not yet ended"),
    MetricSpec("penstock_inflight_limit", "gauge", (), "the most of them"),
    MetricSpec("penstock_jobs_waiting", "gauge", ("tenant", "model_name"), "jobs in their tenant's list"),
    MetricSpec("penstock_jobs_running", "gauge", ("tenant", "model_name"), "jobs under a lease"),
    MetricSpec("penstock_oldest_job_age_seconds", "gauge", ("tenant",), "age of the tenant's oldest waiting job"),
    MetricSpec("penstock_workers", "gauge", (), "live workers"),
    MetricSpec("penstock_slots", "gauge", (), "slots of live workers"),
    MetricSpec("penstock_pool_tier", "gauge", ("model_name",), "how hard a pool is pressed, 0 to 2"),
    MetricSpec(
        "penstock_capacity_tokens_per_second", "gauge", (), "weighted tokens a second that live workers measured"
    ),
    MetricSpec("penstock_worker_slots_busy", "gauge", ("worker",), "slots that run a job"),
    MetricSpec("penstock_worker_kv_used_ratio", "gauge", ("worker",), "share of KV cells in use"),
)

#: Of one ingress or gate; prometheus-client keeps them (web/http/telemetry.py, web/gate/server.py).
HTTP_REQUESTS = MetricSpec("penstock_http_requests", "counter", ("route", "method", "status"), "answered requests")
HTTP_SECONDS = MetricSpec("penstock_http_request_seconds", "histogram", ("route", "method"), "until the answer began")
SCRIPT_SECONDS = MetricSpec(
    "penstock_store_script_seconds", "histogram", ("script",), "round trips to the store, by script"
)
STORELESS = MetricSpec("penstock_refused_without_store", "counter", (), "yields given because the store did not answer")
WAITING_CALLS = MetricSpec("penstock_followed_jobs", "gauge", (), "jobs whose end or events somebody waits for here")
GATE_FRAMES = MetricSpec("penstock_gate_frames", "counter", ("status",), "frames that the TCP gate said")
GATE_CONNECTIONS = MetricSpec("penstock_gate_connections", "gauge", (), "open connections of the TCP gate")
BUILD_INFO = MetricSpec("penstock_build_info", "gauge", ("version", "python"), "always 1")
PROCESS: tuple[MetricSpec, ...] = (
    HTTP_REQUESTS,
    HTTP_SECONDS,
    SCRIPT_SECONDS,
    STORELESS,
    WAITING_CALLS,
    GATE_FRAMES,
    GATE_CONNECTIONS,
    BUILD_INFO,
)

FLEET: tuple[MetricSpec, ...] = (*COUNTED, ADMISSION, *BY_WORKER, *GAUGES)
ALL: tuple[MetricSpec, ...] = (*FLEET, *PROCESS)
