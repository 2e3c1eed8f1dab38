"""The settings of the workers: the model, its device and memory, and the batching loop."""

from shared.settings.engines import ENGINES
from shared.settings.setting import AUTO, HOST_PORT, Setting, float_row, int_row, text_row, word_row

ROWS: tuple[Setting, ...] = (
    text_row(
        "model", "", "a GGUF file or org/repo[:QUANT or file][@revision]", "unset: `penstock up` uses the demo model"
    ),
    text_row(
        "model_name",
        "",
        "served name, then aliases, comma-separated",
        "unset: the file name without its extension, or org/repo; never a path",
    ),
    text_row(
        "device",
        "auto",
        "auto, cpu, or device numbers such as 0,1",
        "auto: worker number i uses visible device number i",
        pattern=r"auto|cpu|\d+(,\d+)*",
    ),
    int_row("n_gpu_layers", -1, "layers", -1, 100_000, "layers of the model that run on the GPU; -1: all"),
    int_row(
        "threads", AUTO, "threads", 1, 1_024, "auto: (usable cores - 1) / workers, at least 1; 1 on a GPU", auto=True
    ),
    int_row(
        "n_ctx",
        AUTO,
        "tokens",
        16,
        10_000_000,
        "the longest job a worker accepts, in tokens of prompt and answer; "
        "auto: the smallest of the model's context, the KV cells, and 32768 (GPU) or 8192 (CPU)",
        auto=True,
    ),
    int_row(
        "kv_cells",
        AUTO,
        "cells",
        16,
        100_000_000,
        "KV cells of all slots together; auto: on a CPU slots x n_ctx if that takes at most 1 GiB, else slots x 2048; "
        "on a GPU, as memory allows, up to slots x n_ctx",
        auto=True,
    ),
    word_row(
        "pooling",
        "auto",
        ("auto", "none", "mean", "cls", "last"),
        "auto: as set in the model file; none: generate text; mean, cls, last: compute embeddings with this pooling",
    ),
    word_row(
        "kv_type",
        "f16",
        ("f16", "f32", "q8_0", "q4_0"),
        "number format of the KV cells; f16 loses no measurable quality",
    ),
    int_row(
        "max_batch_size",
        AUTO,
        "slots",
        1,
        1_024,
        "jobs that a worker runs at once; auto: 8 to 64 on a GPU, as the calibration finds, 4 on a CPU, and at most 64 "
        "for an upstream",
        auto=True,
    ),
    int_row(
        "prefill_chunk",
        AUTO,
        "tokens",
        16,
        65_536,
        "maximum number of prompt tokens in one step; auto: 512 to about 2,000 on a GPU, as the calibration finds, and "
        "512 on a CPU",
        auto=True,
    ),
    int_row(
        "step_target_ms",
        AUTO,
        "ms",
        1,
        60_000,
        "longest time that new jobs' prompts may add to a step while other jobs decode; "
        "auto: 100 on a GPU, 250 on a CPU",
        auto=True,
    ),
    word_row(
        "speculation",
        "auto",
        ("auto", "off"),
        "auto: tokens that probably come next, because they occur in the prompt or the answer, are computed in advance "
        "where that saves time; answers change by no more than rounding",
    ),
    int_row(
        "batch_timeout_ms", 0, "ms", 0, 10_000, "how long an idle engine waits for more jobs before its first step"
    ),
    int_row(
        "max_schema_bytes",
        65_536,
        "bytes",
        256,
        1 << 20,
        "longest JSON schema, regular expression or grammar of a response_format; 400 bounded integers take 23 kB",
    ),
    int_row(
        "schema_cpu_ms",
        500,
        "ms",
        10,
        60_000,
        "CPU time in which a response_format must be compiled; those of real programs take 1 to 20 ms",
    ),
    float_row(
        "schema_step_ms",
        5.0,
        "ms",
        0.01,
        1_000,
        "CPU time that a response_format may take for each token on average, and ten times as much for one token; "
        "usual schemas take 0.1 ms with 152,000 tokens",
    ),
    int_row(
        "template_cpu_ms",
        1_000,
        "ms",
        10,
        60_000,
        "CPU time in which the model's chat template must render a job's messages; usual chats take 1 ms",
    ),
    word_row(
        "unknown_formats",
        "refuse",
        ("refuse", "ignore"),
        "a JSON schema's format that cannot be enforced. refuse: 400; ignore: it restricts nothing",
    ),
    word_row(
        "tools_without_template",
        "generic",
        ("generic", "refuse"),
        "tools for a model whose chat template shows none. generic: a message explains them; refuse: 400",
    ),
    int_row(
        "prepare_threads",
        2,
        "threads",
        1,
        64,
        "jobs that a worker tokenizes and compiles at once, each of another tenant; a tenant's next one waits",
    ),
    word_row(
        "engine",
        "llama",
        tuple(ENGINES),
        "sim: the same loop with a simulated model, for load tests; upstream: an OpenAI-compatible server",
    ),
    float_row("sim_prefill_tps", 2_000.0, "tokens/s", 0.001, 1e9, "prompt tokens per second of a sim slot"),
    float_row("sim_decode_tps", 20.0, "tokens/s", 0.001, 1e9, "generated tokens per second of a sim slot"),
    int_row(
        "resume_tokens",
        32,
        "tokens",
        2,
        4_096,
        "the most tokens of an answer that are computed again if the worker is killed; their ids are stored in time",
    ),
    int_row(
        "paused_bytes",
        1 << 30,
        "bytes",
        0,
        1 << 50,
        "host memory of a worker for the KV cells of paused jobs whose cells others need; what exceeds it is computed "
        "again; 1 GiB is enough for 45,000 tokens of a model with 23 kB a token",
    ),
    int_row("drain_grace_ms", 120_000, "ms", 0, 3_600_000, "how long a draining worker may take to finish its jobs"),
    int_row("stall_ms", 120_000, "ms", 100, 3_600_000, "a worker whose jobs produce no token for this long exits"),
    text_row(
        "worker_listen",
        "",
        "host:port",
        "a worker's address for /health, /health/ready and /metrics; unset: not served; port 0: any free port",
        pattern=f"|{HOST_PORT}",
    ),
)
