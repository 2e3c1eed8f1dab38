"""The settings of a worker whose engine is an OpenAI-compatible server."""

from shared.settings.setting import AUTO, Setting, int_row, text_row

ROWS: tuple[Setting, ...] = (
    text_row(
        "upstream_url",
        "",
        "a base URL such as http://127.0.0.1:8080/v1",
        "the OpenAI-compatible server to which a worker with PENSTOCK_ENGINE=upstream passes its jobs",
        pattern=r"|https?://[^\s/?#@]+(/[^\s?#]*)?",
    ),
    text_row(
        "upstream_api_key",
        "",
        "text",
        "the bearer key for the upstream; PENSTOCK_UPSTREAM_API_KEY_FILE names a file that has it; unset: none",
        pattern=r"[\x21-\x7e]*",
        secret=True,
    ),
    text_row(
        "upstream_model",
        "",
        "the model's name at the upstream",
        "unset: the served name; if PENSTOCK_MODEL_NAME is not set, it is also the served name",
    ),
    int_row(
        "upstream_concurrency",
        AUTO,
        "requests",
        1,
        1_024,
        "how many requests a worker sends to the upstream at once, at most PENSTOCK_MAX_BATCH_SIZE; auto: as many as "
        "the upstream serves best, which the worker measures",
        auto=True,
    ),
    int_row(
        "upstream_first_token_ms",
        120_000,
        "ms",
        50,
        3_600_000,
        "an upstream that has sent nothing of an answer for this long hangs, and the attempt fails; "
        "a prompt of 100,000 tokens may take a minute on a GPU",
    ),
    int_row(
        "upstream_gap_ms",
        30_000,
        "ms",
        50,
        3_600_000,
        "an upstream that sends nothing for this long in the middle of an answer hangs, and the attempt fails",
    ),
    int_row(
        "upstream_max_tokens",
        4096,
        "tokens",
        1,
        10_000_000,
        "the longest answer of an upstream to a request that sets no max_tokens; such a request is sent without a "
        "length, so that the upstream's own default holds if it is shorter",
    ),
)
