"""Declares the name, labels and help text of every metric that Penstock exports, and the histogram buckets.

Fleet metrics are read from the store's counters (fields written by shared/lua/lib/stats.lua), so every door process
exports the same values. Process metrics are counted by the processes of the door. To add a fleet metric: add a row to
this file, write its field in a script, and regenerate docs/http.md (`make docs`).
"""

from dataclasses import dataclass
from typing import Literal

#: The upper bounds of the buckets of every histogram, in ms; a test compares them with shared/lua/lib/stats.lua.
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
#: In gauges, this many tenants have a label value of their own: those with the most recent admissions. All other
#: tenants share the label value OTHER.
MAX_TENANTS = 50
OTHER = "other"


@dataclass(frozen=True)
class MetricSpec:
    """One metric.

    If the metric is read from the store's `stats` hash, the hash has one field for each combination of label values.
    The name of such a field starts with `field`, and the label values follow in the order of `labels`.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    field: str = ""


#: Counters and histograms that are read from the `stats` hash. Prometheus adds `_total` to the names of counters.
COUNTED: tuple[MetricSpec, ...] = (
    MetricSpec("penstock_executed", "counter", (), "jobs that were claimed at least once", "executed"),
    MetricSpec("penstock_yielded", "counter", (), "offers that were refused with status yield", "yielded"),
    MetricSpec("penstock_jobs", "counter", ("tenant", "model_name", "outcome"), "jobs that ended, by outcome", "ended"),
    MetricSpec(
        "penstock_tokens",
        "counter",
        ("tenant", "model_name", "kind"),
        "tokens of ended attempts, by kind: prompt, cached (reused prompt tokens) or completion",
        "tokens",
    ),
    MetricSpec(
        "penstock_wasted_tokens",
        "counter",
        ("tenant", "reason"),
        "tokens computed in attempts that did not succeed",
        "wasted",
    ),
    MetricSpec(
        "penstock_offered_tokens",
        "counter",
        (),
        "prompt tokens plus max_tokens of all offered jobs",
        "offered_tokens",
    ),
    MetricSpec(
        "penstock_leases_reclaimed",
        "counter",
        (),
        "leases that were not renewed in time, so that the job was taken back from its worker",
        "reclaimed",
    ),
    MetricSpec(
        "penstock_mended",
        "counter",
        ("kind",),
        "values that another program had spoiled in the store, by kind: type, number, setting or job",
        "mended",
    ),
    MetricSpec(
        "penstock_pauses",
        "counter",
        ("model_name", "way"),
        "pauses of running jobs that have ended, by where the computed tokens were in the meantime: kept in their KV "
        "cells, copied to host memory, or nowhere, so that they had to be recomputed",
        "pauses",
    ),
    MetricSpec(
        "penstock_routed",
        "counter",
        ("route", "model_name", "why"),
        "jobs that were admitted through a route, by the pool that took them and why",
        "routed",
    ),
    MetricSpec("penstock_requeued", "counter", (), "running jobs that were put back into their queue", "requeued"),
    MetricSpec(
        "penstock_degraded", "counter", ("tenant", "what"), "jobs whose answer was cut under overload", "degraded"
    ),
    MetricSpec(
        "penstock_queue_wait_seconds",
        "histogram",
        ("tenant", "model_name"),
        "time from a job's admission to its first claim",
        "queue_wait",
    ),
    MetricSpec(
        "penstock_time_to_first_token_seconds",
        "histogram",
        ("tenant", "model_name", "size"),
        "time from a job's admission to its first token; size is the prompt's length: s below 256 tokens, m below "
        "2048, l from 2048",
        "time_to_first_token",
    ),
    MetricSpec(
        "penstock_time_per_output_token_seconds",
        "histogram",
        ("tenant", "model_name"),
        "mean time between two consecutive generated tokens of a job",
        "time_per_output_token",
    ),
    MetricSpec(
        "penstock_request_duration_seconds",
        "histogram",
        ("outcome", "tenant", "model_name"),
        "time from a job's admission to its end",
        "request_duration",
    ),
    MetricSpec("penstock_retry_hint_seconds", "histogram", (), "retry hints sent with the refusals", "retry_hint"),
    MetricSpec(
        "penstock_hint_returns",
        "counter",
        ("tenant", "result"),
        "first returns of refused clients, by result: admitted or refused when they were expected, late or early",
        "hint_returns",
    ),
    MetricSpec(
        "penstock_promises",
        "counter",
        ("tenant", "model_name", "result"),
        "admitted jobs by whether the answer was complete by the deadline: kept or broken. Canceled jobs, and jobs "
        "that failed because of the request itself, are not counted",
        "promises",
    ),
    MetricSpec(
        "penstock_start_prediction_error_seconds",
        "histogram",
        ("side",),
        "difference between the predicted and the actual time of each job's first token; side is late if the token "
        "came later than predicted, else early",
        "start_prediction_error",
    ),
    MetricSpec(
        "penstock_end_prediction_error_seconds",
        "histogram",
        ("side",),
        "difference between the predicted and the actual end of each job that succeeded; side is late if the job ended "
        "later than predicted, else early",
        "end_prediction_error",
    ),
)

#: This metric combines two counters of the `stats` hash: `admitted|<tenant>` and `refused|<tenant>|<reason>`.
ADMISSION = MetricSpec(
    "penstock_admission",
    "counter",
    ("tenant", "decision", "reason"),
    "offers, by whether they were admitted and, if not, by the reason of the refusal",
    "",
)

#: Counters that each worker keeps, starting from 0 when it starts; `field` is the counter's name in a heartbeat.
BY_WORKER: tuple[MetricSpec, ...] = (
    MetricSpec(
        "penstock_worker_idle_slot_steps",
        "counter",
        ("worker",),
        "engine steps in which a slot was free although a job was queued",
        "idle_slot_steps",
    ),
    MetricSpec(
        "penstock_dead_tokens",
        "counter",
        ("worker",),
        "tokens that were computed for jobs after their deadline or their cancellation",
        "dead_tokens",
    ),
)

GAUGES: tuple[MetricSpec, ...] = (
    MetricSpec("penstock_inflight", "gauge", (), "admitted jobs that have not ended"),
    MetricSpec("penstock_inflight_limit", "gauge", (), "the bound on inflight jobs"),
    MetricSpec("penstock_jobs_waiting", "gauge", ("tenant", "model_name"), "queued jobs"),
    MetricSpec("penstock_jobs_running", "gauge", ("tenant", "model_name"), "running jobs"),
    MetricSpec(
        "penstock_paused_jobs",
        "gauge",
        ("model_name",),
        "running jobs that have given their slot to another tenant's job and wait for a slot again",
    ),
    MetricSpec(
        "penstock_oldest_job_age_seconds", "gauge", ("tenant",), "age of the oldest queued job that is no batch job"
    ),
    MetricSpec("penstock_workers", "gauge", (), "live workers"),
    MetricSpec("penstock_slots", "gauge", (), "slots of live workers"),
    MetricSpec(
        "penstock_clock_ahead_seconds",
        "gauge",
        (),
        "by how much the queue's time is ahead of the clock of the store's machine, because that clock was set back",
    ),
    MetricSpec("penstock_pool_tier", "gauge", ("model_name",), "how overloaded a pool is, 0 to 2"),
    MetricSpec(
        "penstock_capacity_tokens_per_second",
        "gauge",
        (),
        "weighted tokens per second that the live workers can compute, by their own measurements",
    ),
    MetricSpec("penstock_worker_slots_busy", "gauge", ("worker",), "slots in which a job runs"),
    MetricSpec("penstock_worker_kv_used_ratio", "gauge", ("worker",), "fraction of the KV cells that is in use"),
    MetricSpec("penstock_budget_tokens", "gauge", ("kind", "owner", "period"), "tokens that are allowed in the period"),
    MetricSpec("penstock_budget_used_tokens", "gauge", ("kind", "owner", "period"), "tokens counted and reserved"),
)

#: Metrics that the processes of a door (HTTP or gate) count; prometheus-client keeps them (web/http/process_metrics.py,
#: web/gate/server.py).
HTTP_REQUESTS = MetricSpec(
    "penstock_http_requests", "counter", ("route", "method", "status"), "HTTP requests that were answered"
)
HTTP_SECONDS = MetricSpec(
    "penstock_http_request_seconds", "histogram", ("route", "method"), "time from a request to the start of its answer"
)
SCRIPT_SECONDS = MetricSpec(
    "penstock_store_script_seconds", "histogram", ("script",), "time of one round trip to the store, by script"
)
REFUSED_WITHOUT_STORE = MetricSpec(
    "penstock_refused_without_store", "counter", (), "yields that were sent because the store did not answer"
)
FAILED_KEYS = MetricSpec(
    "penstock_failed_keys",
    "counter",
    ("code", "limited"),
    "keys that were not valid, by the error code for such keys; limited is yes if the address had sent too many before",
)
FOLLOWED_JOBS = MetricSpec(
    "penstock_followed_jobs", "gauge", (), "jobs that clients follow or wait for, added up over the door's processes"
)
HTTP_CONNECTIONS = MetricSpec("penstock_http_connections", "gauge", (), "open connections of the HTTP processes")
TURNED_AWAY = MetricSpec(
    "penstock_http_turned_away",
    "counter",
    ("bound",),
    "connections and requests that would have exceeded a bound of an HTTP process",
)
GATE_FRAMES = MetricSpec("penstock_gate_frames", "counter", ("status",), "frames that the TCP gate sent")
GATE_CONNECTIONS = MetricSpec("penstock_gate_connections", "gauge", (), "open connections of the TCP gate")
GATE_REFUSED_CONNECTIONS = MetricSpec(
    "penstock_gate_refused_connections",
    "counter",
    ("bound",),
    "connections that the TCP gate refused, by the setting whose bound was reached",
)
BUILD_INFO = MetricSpec(
    "penstock_build_info",
    "gauge",
    ("version", "python"),
    "constant 1; the labels are the versions of Penstock and Python",
)
PROCESS: tuple[MetricSpec, ...] = (
    HTTP_REQUESTS,
    HTTP_SECONDS,
    SCRIPT_SECONDS,
    REFUSED_WITHOUT_STORE,
    FAILED_KEYS,
    FOLLOWED_JOBS,
    HTTP_CONNECTIONS,
    TURNED_AWAY,
    GATE_FRAMES,
    GATE_CONNECTIONS,
    GATE_REFUSED_CONNECTIONS,
    BUILD_INFO,
)

FLEET: tuple[MetricSpec, ...] = (*COUNTED, ADMISSION, *BY_WORKER, *GAUGES)
ALL: tuple[MetricSpec, ...] = (*FLEET, *PROCESS)
