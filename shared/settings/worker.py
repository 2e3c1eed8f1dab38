"""The settings of the workers: the model, its device and memory, the batching loop, and the upstream server."""

from dataclasses import dataclass

from shared.settings.engines import ENGINES, EngineKind
from shared.settings.setting import AUTO, HOST_PORT, host_port, number, text, word


@dataclass(frozen=True)
class WorkerSettings:
    """The model, its device and memory, the batching loop, and the upstream server of an engine that has one."""

    model: str = text(
        "", "a GGUF file or org/repo[:QUANT or file][@revision]", "unset: `penstock up` uses the demo model"
    )
    model_name: str = text(
        "",
        "served name, then aliases, comma-separated",
        "unset: the file name without its extension, or org/repo; never a path",
    )
    adapters: str = text(
        "",
        "NAME=FILE[:SCALE], comma-separated",
        "LoRA adapters of PENSTOCK_MODEL, each a GGUF file; each is served as a model of its own, BASE:NAME",
        option="--adapter",
    )
    models: str = text(
        "",
        "a folder of GGUF files, or [NAME=]MODEL, comma-separated",
        "several models; a worker holds one at a time, and loads the others on demand",
    )
    loading_share: float = number(
        0.2, "0.01..0.9", (0.01, 0.9), "the largest part of its time that a worker with PENSTOCK_MODELS spends loading"
    )
    device: str = text(
        "auto",
        "auto, cpu, or device numbers such as 0,1",
        "auto: worker number i uses visible device number i",
        pattern=r"auto|cpu|\d+(,\d+)*",
    )
    n_gpu_layers: int = number(-1, "layers", (-1, 100_000), "layers of the model that run on the GPU; -1: all")
    gpu_memory_bytes: int = number(
        AUTO,
        "bytes",
        (1 << 28, 1 << 44),
        "memory of each of its GPUs that a worker takes at most; auto: what is free; `penstock up` with several models "
        "shares a GPU out",
    )
    threads: int = number(AUTO, "threads", (1, 1_024), "auto: (usable cores - 1) / workers, at least 1; 1 on a GPU")
    n_ctx: int = number(
        AUTO,
        "tokens",
        (16, 10_000_000),
        "the longest job a worker accepts, in tokens of prompt and answer; "
        "auto: the smallest of the model's context, the KV cells, and 32768 (GPU) or 8192 (CPU)",
        option="--context",
    )
    kv_cells: int = number(
        AUTO,
        "cells",
        (16, 100_000_000),
        "KV cells of all slots together; auto: on a CPU slots x n_ctx if that takes at most 1 GiB, else slots x 2048; "
        "on a GPU, as memory allows, up to slots x n_ctx",
    )
    pooling: str = word(
        "auto",
        ("auto", "none", "mean", "cls", "last"),
        "auto: as set in the model file; none: generate text; mean, cls, last: compute embeddings with this pooling",
    )
    kv_type: str = word(
        "f16", ("f16", "f32", "q8_0", "q4_0"), "number format of the KV cells; f16 loses no measurable quality"
    )
    max_batch_size: int = number(
        AUTO,
        "slots",
        (1, 1_024),
        "jobs that a worker runs at once; auto: 8 to 64 on a GPU, as the calibration finds, 4 on a CPU, and at most 64 "
        "for an upstream",
        option="--slots",
    )
    prefill_chunk: int = number(
        AUTO,
        "tokens",
        (16, 65_536),
        "maximum number of prompt tokens in one step; auto: 512 to about 2,000 on a GPU, as the calibration finds, and "
        "512 on a CPU",
    )
    step_target_ms: int = number(
        AUTO,
        "ms",
        (1, 60_000),
        "longest time that new jobs' prompts may add to a step while other jobs decode; "
        "auto: 100 on a GPU, 250 on a CPU",
    )
    speculation: str = word(
        "auto",
        ("auto", "off"),
        "auto: tokens that probably come next, because they occur in the prompt or the answer, are computed in advance "
        "where that saves time; answers change by no more than rounding",
    )
    batch_timeout_ms: int = number(
        0, "ms", (0, 10_000), "how long an idle engine waits for more jobs before its first step"
    )
    max_schema_bytes: int = number(
        65_536,
        "bytes",
        (256, 1 << 20),
        "longest JSON schema, regular expression or grammar of a response_format; 400 bounded integers take 23 kB",
    )
    schema_cpu_ms: int = number(
        500,
        "ms",
        (10, 60_000),
        "CPU time in which a response_format must be compiled; those of real programs take 1 to 20 ms",
    )
    schema_step_ms: float = number(
        5.0,
        "ms",
        (0.01, 1_000),
        "CPU time that a response_format may take for each token on average, and ten times as much for one token; "
        "usual schemas take 0.1 ms with 152,000 tokens",
    )
    template_cpu_ms: int = number(
        1_000,
        "ms",
        (10, 60_000),
        "CPU time in which the model's chat template must render a job's messages; usual chats take 1 ms",
    )
    unknown_formats: str = word(
        "refuse",
        ("refuse", "ignore"),
        "a JSON schema's format that cannot be enforced. refuse: 400; ignore: it restricts nothing",
    )
    tools_without_template: str = word(
        "generic",
        ("generic", "refuse"),
        "tools for a model whose chat template shows none. generic: a message explains them; refuse: 400",
    )
    prepare_threads: int = number(
        2,
        "threads",
        (1, 64),
        "jobs that a worker tokenizes and compiles at once, each of another tenant; a tenant's next one waits",
    )
    engine: str = word(
        "llama",
        tuple(ENGINES),
        "sim: the same loop with a simulated model, for load tests; upstream: an OpenAI-compatible server",
    )
    sim_prefill_tps: float = number(2_000.0, "tokens/s", (0.001, 1e9), "prompt tokens per second of a sim slot")
    sim_decode_tps: float = number(20.0, "tokens/s", (0.001, 1e9), "generated tokens per second of a sim slot")
    resume_tokens: int = number(
        32,
        "tokens",
        (2, 4_096),
        "the most tokens of an answer that are computed again if the worker is killed; their ids are stored in time; "
        "of an answer that no client follows, the tokens of the last second",
    )
    text_interval_ms: int = number(
        20,
        "ms",
        (0, 1_000),
        "how often new text of the answers that clients follow is written, for all of them together, and half as often "
        "if a worker has more than 64 of them; the first text of an answer is written at once, and with 0 all text is",
    )
    paused_bytes: int = number(
        1 << 30,
        "bytes",
        (0, 1 << 50),
        "host memory of a worker for the KV cells of paused jobs whose cells others need; what exceeds it is computed "
        "again; 1 GiB is enough for 45,000 tokens of a model with 23 kB a token",
    )
    drain_grace_ms: int = number(
        120_000, "ms", (0, 3_600_000), "how long a draining worker may take to finish its jobs"
    )
    stall_ms: int = number(120_000, "ms", (100, 3_600_000), "a worker whose jobs produce no token for this long exits")
    worker_listen: str = text(
        "",
        "host:port",
        "a worker's address for /health, /health/ready and /metrics; unset: not served; port 0: any free port",
        pattern=f"|{HOST_PORT}",
    )
    upstream_url: str = text(
        "",
        "a base URL such as http://127.0.0.1:8080/v1",
        "the OpenAI-compatible server to which a worker with PENSTOCK_ENGINE=upstream passes its jobs",
        pattern=r"|https?://[^\s/?#@]+(/[^\s?#]*)?",
        option="--upstream",
    )
    upstream_api_key: str = text(
        "",
        "text",
        "the bearer key for the upstream; PENSTOCK_UPSTREAM_API_KEY_FILE names a file that has it; unset: none",
        pattern=r"[\x21-\x7e]*",
        secret=True,
    )
    upstream_model: str = text(
        "",
        "the model's name at the upstream",
        "unset: the served name; if PENSTOCK_MODEL_NAME is not set, it is also the served name",
    )
    upstream_concurrency: int = number(
        AUTO,
        "requests",
        (1, 1_024),
        "how many requests a worker sends to the upstream at once, at most PENSTOCK_MAX_BATCH_SIZE; auto: as many as "
        "the upstream serves best, which the worker measures",
    )
    upstream_first_token_ms: int = number(
        120_000,
        "ms",
        (50, 3_600_000),
        "an upstream that has sent nothing of an answer for this long hangs, and the attempt fails; "
        "a prompt of 100,000 tokens may take a minute on a GPU",
    )
    upstream_gap_ms: int = number(
        30_000,
        "ms",
        (50, 3_600_000),
        "an upstream that sends nothing for this long in the middle of an answer hangs, and the attempt fails",
    )
    upstream_max_tokens: int = number(
        4096,
        "tokens",
        (1, 10_000_000),
        "the longest answer of an upstream to a request that sets no max_tokens; such a request is sent without a "
        "length, so that the upstream's own default holds if it is shorter",
    )

    @property
    def engine_kind(self) -> EngineKind:
        """The needs of the engine that `PENSTOCK_ENGINE` names."""
        return ENGINES[self.engine]

    @property
    def worker_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_WORKER_LISTEN` as (host, port); it must be set."""
        return host_port(self.worker_listen)
