"""The board of one tenant."""

from tools.boards.expressions import FIRST_TOKEN, JOBS, PROMISES, amount, gauge, offers, quantile, rate, tokens, total
from tools.boards.grafana import Board, Panel, Variable

_OF_TENANT = 'tenant="$tenant"'

TENANT = Board(
    "penstock-tenant",
    "Penstock: one tenant",
    "What one tenant asks for, gets and waits for.",
    (
        Panel(
            "Admitted and refused",
            "reqps",
            (
                (total(offers(f'{_OF_TENANT}, decision="admitted"')), "admitted"),
                (total(offers(f'{_OF_TENANT}, decision="refused"'), "reason"), "{{reason}}"),
            ),
            "Offers a second, refused ones by their reason.",
            stacked=True,
        ),
        Panel(
            "Queued and running jobs",
            "short",
            (
                (amount("penstock_jobs_waiting", where=_OF_TENANT), "queued"),
                (amount("penstock_jobs_running", where=_OF_TENANT), "running"),
            ),
            "Inflight jobs by state.",
        ),
        Panel(
            "Service relative to the fair share",
            "percentunit",
            ((gauge("penstock_tenant_share_ratio", where=_OF_TENANT), "served"),),
            "100 % means that the tenant is served what its weight gives it. Less means something only if it has "
            "queued jobs.",
        ),
        Panel(
            "Oldest queued job",
            "s",
            ((gauge("penstock_oldest_job_age_seconds", where=_OF_TENANT), "age"),),
            "The age of the oldest queued job that is no batch job.",
        ),
        Panel(
            "Tokens",
            "short",
            ((total(tokens(_OF_TENANT), "kind"), "{{kind}}"),),
            "Tokens a second of ended attempts: prompt, cached (reused prompt tokens) and completion.",
        ),
        Panel(
            "Time to the first token",
            "s",
            tuple(
                (
                    quantile(
                        part, "penstock_time_to_first_token_seconds", "model_name", of=FIRST_TOKEN, where=_OF_TENANT
                    ),
                    f"{{{{model_name}}}}: {name}",
                )
                for part, name in ((0.5, "median"), (0.99, "99 %"))
            ),
            "From a job's admission to its first token, by model.",
        ),
        Panel(
            "Ended jobs",
            "reqps",
            ((total(rate("penstock_jobs_total", *JOBS, where=_OF_TENANT), "outcome"), "{{outcome}}"),),
            "Jobs that end in a second, by outcome.",
            stacked=True,
        ),
        Panel(
            "Promises",
            "reqps",
            ((total(rate("penstock_promises_total", *PROMISES, where=_OF_TENANT), "result"), "{{result}}"),),
            "Admitted jobs that end in a second, by whether the answer was complete by the deadline.",
            stacked=True,
        ),
        Panel(
            "Wasted tokens",
            "short",
            ((total(rate("penstock_wasted_tokens_total", "reason", where=_OF_TENANT), "reason"), "{{reason}}"),),
            "Tokens a second that were computed for nothing, by reason.",
            stacked=True,
        ),
        Panel(
            "Clients that come back",
            "reqps",
            ((total(rate("penstock_hint_returns_total", "result", where=_OF_TENANT), "result"), "{{result}}"),),
            "First returns of refused clients in a second, by result.",
            stacked=True,
        ),
    ),
    (Variable("tenant", "Tenant", 'label_values(penstock_admission_total{job="penstock-fleet"}, tenant)'),),
)
