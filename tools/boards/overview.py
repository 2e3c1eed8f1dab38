"""The board of the whole system and its doors."""

from tools.boards.expressions import (
    DOOR,
    FIRST_TOKEN,
    INTERVAL,
    JOBS,
    PROMISES,
    amount,
    door_quantile,
    gauge,
    offers,
    quantile,
    rate,
    share_of,
    tokens,
    total,
)
from tools.boards.grafana import Board, Panel

_PROMISES_KEPT = share_of(
    rate("penstock_promises_total", *PROMISES, where='result="kept"'), rate("penstock_promises_total", *PROMISES)
)
_HINTS_RIGHT = share_of(
    rate("penstock_hint_returns_total", "tenant", "result", where='result="admitted"'),
    rate("penstock_hint_returns_total", "tenant", "result", where='result=~"admitted|refused"'),
)

OVERVIEW = Board(
    "penstock-overview",
    "Penstock: overview",
    "The whole system and its doors.",
    (
        Panel("Workers", "none", ((amount("penstock_workers"), ""),), "Live workers.", "stat"),
        Panel("Inflight", "none", ((amount("penstock_inflight"), ""),), "Admitted jobs that have not ended.", "stat"),
        Panel("Paused", "none", ((total(amount("penstock_paused_jobs", "model_name")), ""),), "Paused jobs.", "stat"),
        Panel(
            "Refused",
            "percentunit",
            ((share_of(offers('decision="refused"'), offers()), ""),),
            "The share of offers that were refused.",
            "stat",
        ),
        Panel(
            "Promises kept",
            "percentunit",
            ((_PROMISES_KEPT, ""),),
            "The share of admitted jobs whose answer was complete by the deadline.",
            "stat",
        ),
        Panel(
            "Hints right",
            "percentunit",
            ((_HINTS_RIGHT, ""),),
            "Of the clients that came back when they were told, the share that was admitted.",
            "stat",
        ),
        Panel(
            "Admitted and refused",
            "reqps",
            (
                (total(offers('decision="admitted"')), "admitted"),
                (total(offers('decision="refused"'), "reason"), "{{reason}}"),
            ),
            "Offers a second, refused ones by their reason.",
            stacked=True,
        ),
        Panel(
            "Inflight jobs",
            "short",
            (
                (amount("penstock_inflight"), "inflight"),
                (amount("penstock_inflight_limit"), "bound"),
                (amount("penstock_slots"), "slots"),
            ),
            "Inflight jobs, their bound, and the slots of live workers.",
        ),
        Panel(
            "Queued jobs",
            "short",
            ((amount("penstock_jobs_waiting", "tenant"), "{{tenant}}"),),
            "Queued jobs by tenant.",
            stacked=True,
        ),
        Panel(
            "Oldest queued job",
            "s",
            ((gauge("penstock_oldest_job_age_seconds", "tenant"), "{{tenant}}"),),
            "The age of each tenant's oldest queued job that is no batch job.",
        ),
        Panel(
            "Backlog",
            "s",
            ((gauge("penstock_pool_backlog_seconds", "model_name"), "{{model_name}}"),),
            "How long the workers of each model need for its queued jobs, without batch jobs.",
        ),
        Panel(
            "Busy slots",
            "percentunit",
            ((gauge("penstock_pool_busy_ratio", "model_name"), "{{model_name}}"),),
            "Running jobs of each model over the slots of its live workers.",
        ),
        Panel(
            "Generated tokens",
            "short",
            ((total(tokens('kind="completion"'), "tenant"), "{{tenant}}"),),
            "Generated tokens a second of ended attempts, by tenant.",
            stacked=True,
        ),
        Panel(
            "Service relative to the fair share",
            "percentunit",
            ((gauge("penstock_tenant_share_ratio", "tenant"), "{{tenant}}"),),
            "100 % means that a tenant is served what its weight gives it. Less means something only if it has queued "
            "jobs.",
        ),
        Panel(
            "Time to the first token",
            "s",
            (
                (quantile(0.5, "penstock_time_to_first_token_seconds", of=FIRST_TOKEN), "median"),
                (quantile(0.99, "penstock_time_to_first_token_seconds", of=FIRST_TOKEN), "99 %"),
            ),
            "From a job's admission to its first token.",
        ),
        Panel(
            "Ended jobs",
            "reqps",
            ((total(rate("penstock_jobs_total", *JOBS), "outcome"), "{{outcome}}"),),
            "Jobs that end in a second, by outcome.",
            stacked=True,
        ),
        Panel(
            "Work and capacity",
            "short",
            (
                (total(rate("penstock_served_tokens_total", "tenant", "model_name")), "served"),
                (amount("penstock_capacity_tokens_per_second"), "capacity"),
            ),
            "Weighted tokens a second that were computed, and that the live workers can compute.",
        ),
        Panel(
            "Wasted tokens",
            "short",
            ((total(rate("penstock_wasted_tokens_total", "tenant", "reason"), "reason"), "{{reason}}"),),
            "Tokens a second that were computed for nothing, by reason.",
            stacked=True,
        ),
        Panel(
            "Searches for passages",
            "s",
            (
                # Without a search, the quantile is not a number.
                (f"{door_quantile(0.5, 'penstock_retrieval_seconds')} >= 0", "median"),
                (f"{door_quantile(0.99, 'penstock_retrieval_seconds')} >= 0", "99 %"),
            ),
            "How long the requests with `retrieval` wait for their passages.",
        ),
        Panel(
            "Passages from other places",
            "reqps",
            (
                (
                    f"sum by (source, why) (rate(penstock_retrieval_fallbacks_total{{{DOOR}}}[{INTERVAL}]))",
                    "{{source}}: {{why}}",
                ),
                (f'sum(rate(penstock_passage_cache_total{{{DOOR}, result="hit"}}[{INTERVAL}]))', "found in the cache"),
            ),
            "Requests in a second whose passages do not come from a whole search, and those that needed none.",
        ),
        Panel(
            "HTTP requests",
            "reqps",
            ((f"sum by (status) (rate(penstock_http_requests_total{{{DOOR}}}[{INTERVAL}]))", "{{status}}"),),
            "Requests that the doors answer in a second, by status.",
            stacked=True,
        ),
        Panel(
            "Round trips to the store",
            "s",
            ((door_quantile(0.99, "penstock_store_script_seconds", "script"), "{{script}}"),),
            "The 99th percentile by script.",
        ),
        Panel(
            "Connections",
            "short",
            (
                (f"sum by (instance) (penstock_http_connections{{{DOOR}}})", "{{instance}}"),
                (f"sum by (instance) (penstock_followed_jobs{{{DOOR}}})", "{{instance}}: followed jobs"),
            ),
            "Open connections of each door, and the jobs that its clients follow.",
        ),
        Panel(
            "Turned away",
            "reqps",
            ((f"sum by (bound) (rate(penstock_http_turned_away_total{{{DOOR}}}[{INTERVAL}]))", "{{bound}}"),),
            "Connections and requests beyond a bound of a door, in a second.",
            stacked=True,
        ),
    ),
)
