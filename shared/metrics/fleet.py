"""Declares the fleet metrics, which are read from the store, so every door process exports the same values.

The scripts count them in fields of one hash (shared/lua/lib/ledgers/stats.lua). To add a fleet metric: add a row to
this file, write its field in a script, and regenerate docs/metrics.md (`make docs`).
"""

from shared.metrics.spec import MetricSpec

#: Counters and histograms that are read from the `stats` hash. Prometheus adds `_total` to the names of counters.
COUNTED: tuple[MetricSpec, ...] = (
    MetricSpec("penstock_executed", "counter", (), "jobs that were claimed at least once", "executed"),
    MetricSpec("penstock_yielded", "counter", (), "offers that were refused with status yield", "yielded"),
    MetricSpec(
        "penstock_jobs",
        "counter",
        ("tenant", "model_name", "outcome"),
        "jobs that ended, by outcome",
        "ended",
        ("succeeded", "failed", "canceled", "expired"),
    ),
    MetricSpec(
        "penstock_tokens",
        "counter",
        ("tenant", "model_name", "kind"),
        "tokens of ended attempts, by kind: prompt, cached (reused prompt tokens) or completion",
        "tokens",
    ),
    MetricSpec(
        "penstock_served_tokens",
        "counter",
        ("tenant", "model_name"),
        "weighted tokens that were computed in ended attempts, each for the first time",
        "served",
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
        "penstock_engine_crashes",
        "counter",
        ("model_name",),
        "workers that ended by a fault, or that fell silent until the lease of one of their jobs ended",
        "crashes",
    ),
    MetricSpec(
        "penstock_mended",
        "counter",
        ("kind",),
        "values that another program had spoiled in the store, by kind: type, number, setting or job",
        "mended",
        ("type", "number", "setting", "job"),
    ),
    MetricSpec(
        "penstock_pauses",
        "counter",
        ("model_name", "way"),
        "pauses of running jobs, and of candidates that gave back a lent slot, that have ended, by where the computed "
        "tokens were in the meantime: kept in their KV "
        "cells, copied to host memory, or nowhere, so that they had to be recomputed",
        "pauses",
    ),
    MetricSpec(
        "penstock_draft_tokens",
        "counter",
        ("model_name", "result"),
        "tokens that were computed in advance because they probably came next, by result: accepted, which saved a "
        "step, or rejected",
        "drafts",
    ),
    MetricSpec(
        "penstock_routed",
        "counter",
        ("route", "model_name", "why"),
        "jobs that were admitted through a route, by the pool that took them and why",
        "routed",
    ),
    MetricSpec("penstock_webhooks", "counter", ("result",), "tries to send a webhook (docs/webhooks.md)", "webhooks"),
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
        "mean time between two consecutive generated tokens of a job with one answer",
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
        ("admitted", "refused", "late", "early"),
    ),
    MetricSpec(
        "penstock_promises",
        "counter",
        ("tenant", "model_name", "result"),
        "admitted jobs by whether the answer was complete by the deadline: kept or broken. Canceled jobs, and jobs "
        "that failed because of the request itself, are not counted",
        "promises",
        ("kept", "broken"),
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
    MetricSpec("penstock_webhooks_pending", "gauge", (), "ends of jobs and batches that are to be told by a webhook"),
    MetricSpec("penstock_oldest_webhook_age_seconds", "gauge", (), "age of the oldest of these ends; 0 without any"),
    MetricSpec(
        "penstock_tenant_share_ratio",
        "gauge",
        ("tenant",),
        "weighted tokens that the tenant was served, over those that were due to it by its weight and its demand, in "
        "the last minutes that this process has seen; only for tenants that had queued jobs or were served",
    ),
    MetricSpec("penstock_workers", "gauge", (), "live workers"),
    MetricSpec("penstock_slots", "gauge", (), "slots of live workers"),
    MetricSpec(
        "penstock_pool_live",
        "gauge",
        ("model_name",),
        "1 while a live worker serves the model, and 0 for an hour after the last one",
    ),
    MetricSpec(
        "penstock_pool_backlog_seconds",
        "gauge",
        ("model_name",),
        "time that the live workers of a model need for its queued jobs, without batch jobs, at the rates they measure",
    ),
    MetricSpec(
        "penstock_pool_busy_ratio",
        "gauge",
        ("model_name",),
        "running jobs of a model over the slots of its live workers, at most 1",
    ),
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
    MetricSpec(
        "penstock_budget_used_tokens", "gauge", ("kind", "owner", "period"), "tokens counted and reserved, in all cells"
    ),
)

#: With a directory of cells, this gauge is on the page too, and all other metrics have the label `cell`.
CELL_UP = MetricSpec(
    "penstock_cell_up", "gauge", ("cell",), "1 if the store of the cell answers; only with several cells"
)

FLEET: tuple[MetricSpec, ...] = (*COUNTED, ADMISSION, *BY_WORKER, *GAUGES, CELL_UP)
