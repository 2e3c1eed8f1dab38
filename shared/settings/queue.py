"""The settings of admission, fairness, deadlines and leases."""

from dataclasses import dataclass

from shared.settings.setting import AUTO, number, word


@dataclass(frozen=True)
class QueueSettings:
    """Admission, fairness, deadlines and leases."""

    admission: str = word(
        "full", ("full", "bounds"), "bounds: admit without checks of share, backlog and deadline", system_wide=True
    )
    max_inflight: int = number(
        AUTO,
        "jobs",
        (1, 10_000_000),
        "inflight jobs of all tenants; auto: at least 64 and 4 x live slots, and the jobs that the pools can do in "
        "1.25 x PENSTOCK_MAX_WAIT_MS; a low bound weakens the isolation of tenants",
        system_wide=True,
    )
    max_queue_size: int = number(
        AUTO, "jobs", (1, 1_000_000), "queued jobs per tenant; auto: max(16, 2 x live slots)", system_wide=True
    )
    max_queue_tokens: int = number(
        AUTO,
        "tokens",
        (1, 10**12),
        "prompt tokens plus max_tokens of a tenant's queued jobs; auto: their expected work is at most what "
        "the pool can do in PENSTOCK_MAX_WAIT_MS",
        system_wide=True,
    )
    max_tenant_bytes: int = number(
        AUTO,
        "bytes",
        (65_536, 10**15),
        "bound on the store's memory that a tenant's jobs and results take; auto: a quarter of the store's maxmemory",
        system_wide=True,
    )
    max_wait_ms: int = number(
        8_000, "ms", (1, 3_600_000), "longest time that a pool's queued work may take to compute", system_wide=True
    )
    fairness: str = word(
        "tokens",
        ("tokens", "turns"),
        "tokens: each job costs its weighted tokens; turns: every job costs the same (weighted round robin)",
        system_wide=True,
    )
    preemption: str = word(
        "auto",
        ("auto", "on", "off"),
        "on: a worker pauses running jobs of tenants that have more than their share, so that others can start, unless "
        "its engine cannot pause jobs; auto: on with PENSTOCK_FAIRNESS=tokens, else off",
        system_wide=True,
    )
    quantum_ms: int = number(
        1_000,
        "ms",
        (10, 600_000),
        "a running job keeps its slot for this long before one of a less served tenant takes turns with it",
        system_wide=True,
    )
    degradation: str = word(
        "off",
        ("off", "on"),
        "on: under overload, tenants that opted in get shorter answers instead of refusals or late answers",
        system_wide=True,
    )
    default_deadline_ms: int = number(120_000, "ms", (1, 86_400_000), "deadline of requests that do not name one")
    max_deadline_ms: int = number(600_000, "ms", (1, 86_400_000), "the longest deadline that a request may name")
    default_start_ms: int = number(
        30_000, "ms", (1, 86_400_000), "start deadline of streaming requests that do not name one"
    )
    admission_safety_margin: float = number(
        0.8, "fraction of the deadline", (0.05, 1.0), "latest predicted end of an admitted job", system_wide=True
    )
    poll_grace_ms: int = number(
        0, "ms", (0, 86_400_000), "a job that no client polls for this long is canceled; 0: never", system_wide=True
    )
    lease_ms: int = number(
        15_000, "ms", (100, 600_000), "how long a worker keeps a job without renewing its lease", system_wide=True
    )
    max_attempts: int = number(
        3,
        "claims",
        (1, 100),
        "attempts after which a job fails as poison; the loss of a worker that ran several jobs is no attempt",
        system_wide=True,
    )
    result_ttl_s: int = number(
        3_600, "s", (1, 31_536_000), "how long an ended job and its result can be read", system_wide=True
    )
    default_max_tokens: int = number(
        256, "tokens", (1, 10_000_000), "max_tokens of requests that set none; cut to the context"
    )
    history_bytes: int = number(
        16 * 2**20,
        "bytes",
        (2**23, 2**34),
        "the most memory of the store for the history: what happened in the last hour, day and 30 days",
    )
    generated_weight: int = number(
        AUTO,
        "prompt tokens",
        (1, 1_000),
        "cost of a generated token; a prompt token costs 1; auto: what the model's workers measure, 4 until then",
        system_wide=True,
    )

    @property
    def preempts(self) -> bool:
        return self.preemption == "on" or (self.preemption == "auto" and self.fairness == "tokens")
