"""The settings of admission, fairness, deadlines and leases."""

from shared.settings.setting import AUTO, Setting, float_row, int_row, word_row

ROWS: tuple[Setting, ...] = (
    word_row("admission", "full", ("full", "bounds"), "bounds: admit without checks of share, backlog and deadline"),
    int_row(
        "max_inflight",
        AUTO,
        "jobs",
        1,
        10_000_000,
        "inflight jobs of all tenants; auto: at least 64 and 4 x live slots, and the jobs that the pools can do in "
        "1.25 x PENSTOCK_MAX_WAIT_MS; a low bound weakens the isolation of tenants",
        auto=True,
    ),
    int_row(
        "max_queue_size", AUTO, "jobs", 1, 1_000_000, "queued jobs per tenant; auto: max(16, 2 x live slots)", auto=True
    ),
    int_row(
        "max_queue_tokens",
        AUTO,
        "tokens",
        1,
        10**12,
        "prompt tokens plus max_tokens of a tenant's queued jobs; auto: their expected work is at most what "
        "the pool can do in PENSTOCK_MAX_WAIT_MS",
        auto=True,
    ),
    int_row(
        "max_tenant_bytes",
        AUTO,
        "bytes",
        65_536,
        10**15,
        "bound on the store's memory that a tenant's jobs and results take; auto: a quarter of the store's maxmemory",
        auto=True,
    ),
    int_row("max_wait_ms", 8_000, "ms", 1, 3_600_000, "longest time that a pool's queued work may take to compute"),
    word_row(
        "fairness",
        "tokens",
        ("tokens", "turns"),
        "tokens: each job costs its weighted tokens; turns: every job costs the same (weighted round robin)",
    ),
    word_row(
        "preemption",
        "auto",
        ("auto", "on", "off"),
        "on: a worker pauses running jobs of tenants that have more than their share, so that others can start, unless "
        "its engine cannot pause jobs; auto: on with PENSTOCK_FAIRNESS=tokens, else off",
    ),
    int_row(
        "quantum_ms",
        1_000,
        "ms",
        10,
        600_000,
        "a running job keeps its slot for this long before one of a less served tenant takes turns with it",
    ),
    word_row(
        "degradation",
        "off",
        ("off", "on"),
        "on: under overload, tenants that opted in get shorter answers instead of refusals or late answers",
    ),
    int_row("default_deadline_ms", 120_000, "ms", 1, 86_400_000, "deadline of requests that do not name one"),
    int_row("max_deadline_ms", 600_000, "ms", 1, 86_400_000, "the longest deadline that a request may name"),
    int_row(
        "default_start_ms", 30_000, "ms", 1, 86_400_000, "start deadline of streaming requests that do not name one"
    ),
    float_row(
        "admission_safety_margin", 0.8, "fraction of the deadline", 0.05, 1.0, "latest predicted end of an admitted job"
    ),
    int_row(
        "poll_grace_ms",
        0,
        "ms",
        0,
        86_400_000,
        "a job that no client polls for this long is canceled; 0: never",
    ),
    int_row("lease_ms", 15_000, "ms", 100, 600_000, "how long a worker keeps a job without renewing its lease"),
    int_row(
        "max_attempts",
        3,
        "claims",
        1,
        100,
        "attempts after which a job fails as poison; the loss of a worker that ran several jobs is no attempt",
    ),
    int_row("result_ttl_s", 3_600, "s", 1, 31_536_000, "how long an ended job and its result can be read"),
    int_row(
        "default_max_tokens", 256, "tokens", 1, 10_000_000, "max_tokens of requests that set none; cut to the context"
    ),
    int_row(
        "generated_weight",
        AUTO,
        "prompt tokens",
        1,
        1_000,
        "cost of a generated token; a prompt token costs 1; auto: what the model's workers measure, 4 until then",
        auto=True,
    ),
)
