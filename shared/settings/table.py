"""The rows of all settings: environment name, default, unit, range, and why this default.

`.env.example` and docs/settings.md are made from these rows, and a test compares them.
"""

import re
from dataclasses import dataclass
from typing import Literal

from shared import failpoints
from shared.errors import ConfigError

#: Stands for `auto` in integer settings that have it.
AUTO = -2

Value = str | int | float


@dataclass(frozen=True)
class Setting:
    """One setting. `choices` for words, `low`/`high` for numbers, `pattern` for other text."""

    field: str
    name: str
    kind: Literal["text", "int", "float"]
    default: Value
    unit: str
    why: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    auto: bool = False

    def parse(self, text: str) -> Value:
        """The value that `text` stands for. Raises ConfigError, naming the setting and quoting the text."""
        text = text.strip()
        if self.auto and text.lower() == "auto":
            return AUTO
        if self.kind == "text":
            return self._word(text)
        try:
            number = int(text) if self.kind == "int" else float(text)
        except ValueError:
            wanted = "a whole number" if self.kind == "int" else "a number"
            raise ConfigError(f"{self.name}={text!r} is not {wanted}{' or auto' if self.auto else ''}") from None
        if not (self.low is None or number >= self.low) or not (self.high is None or number <= self.high):
            span = f"{self._bound(self.low)} to {self._bound(self.high)}"
            raise ConfigError(f"{self.name}={text!r} is out of range: {span}")
        return number

    def _word(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name}={text!r} is not one of {', '.join(self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise ConfigError(f"{self.name}={text!r} does not look like {self.unit}")
        return text

    @staticmethod
    def _bound(number: float | None) -> str:
        return "any" if number is None else f"{number:g}"

    @property
    def shown_default(self) -> str:
        """The default as a person would write it."""
        return "auto" if self.auto and self.default == AUTO else str(self.default)


def _text(field: str, default: str, unit: str, why: str, *, name: str = "", pattern: str = "") -> Setting:
    return Setting(field, name or f"PENSTOCK_{field.upper()}", "text", default, unit, why, pattern=pattern)


def _word(field: str, default: str, choices: tuple[str, ...], why: str) -> Setting:
    return Setting(field, f"PENSTOCK_{field.upper()}", "text", default, " or ".join(choices), why, choices=choices)


def _int(field: str, default: int, unit: str, low: float, high: float, why: str, *, auto: bool = False) -> Setting:
    return Setting(field, f"PENSTOCK_{field.upper()}", "int", default, unit, why, low, high, auto=auto)


def _float(field: str, default: float, unit: str, low: float, high: float, why: str) -> Setting:
    return Setting(field, f"PENSTOCK_{field.upper()}", "float", default, unit, why, low, high)


_HOST_PORT = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"

ROWS: tuple[Setting, ...] = (
    _text(
        "redis_url",
        "",
        "a URL of Redis >= 6.2 or Valkey",
        "unset: the embedded store under PENSTOCK_STATE_DIR",
        name="REDIS_URL",
        pattern=r"|(redis|rediss|unix|redis\+sentinel)://.*",
    ),
    _text("state_dir", "", "a folder", "unset: penstock under the user's data folder"),
    _word(
        "appendfsync",
        "everysec",
        ("everysec", "always"),
        "embedded store: a power failure costs the last second of admissions; always: none, and slower admissions",
    ),
    _text("listen", "127.0.0.1:8000", "host:port", "loopback, until somebody decides otherwise", pattern=_HOST_PORT),
    _int("web_workers", 2, "processes", 1, 64, "one can restart while the other answers"),
    _word("auth", "required", ("required", "open"), "open is for loopback: the tenant is X-Tenant, keys are ignored"),
    _text("admin_key_file", "", "a file", "unset: admin.key in the state folder, made at first start, mode 0600"),
    _text(
        "allowed_hosts", "", "host names, comma-separated", "unset: loopback names; another Host is 421 (DNS rebinding)"
    ),
    _text("cors_origins", "", "origins, comma-separated", "unset: no page of another origin may read answers"),
    _word("dashboard", "auto", ("auto", "off", "read", "write"), "auto: readable on loopback, off elsewhere"),
    _word("admission", "full", ("full", "bounds"), "bounds stops after inflight and the tenant's list"),
    _int(
        "max_inflight", AUTO, "jobs", 1, 10_000_000, "auto: max(64, 4 x live slots); fewer costs isolation", auto=True
    ),
    _int("max_queue_size", AUTO, "jobs", 1, 1_000_000, "auto: max(16, 2 x live slots), waiting per tenant", auto=True),
    _int("max_queue_tokens", 65_536, "tokens", 1, 10**12, "what a tenant's waiting jobs may hold, prompt and answer"),
    _int("max_wait_ms", 8_000, "ms", 1, 3_600_000, "work that may wait in all, at the measured rate"),
    Setting(
        "tenant_bound_status",
        "PENSTOCK_TENANT_BOUND_STATUS",
        "int",
        503,
        "HTTP status",
        "429 for meshes that eject a backend on 5xx",
        400,
        599,
    ),
    _word(
        "fairness",
        "tokens",
        ("tokens", "turns"),
        "tokens: turns by service received; turns: plain round robin, by weight",
    ),
    _word(
        "degradation",
        "off",
        ("off", "on"),
        "on: under pressure, jobs of tenants that opted in are answered shorter rather than refused or late",
    ),
    _int("default_deadline_ms", 120_000, "ms", 1, 86_400_000, "patience when the client names none"),
    _int("max_deadline_ms", 600_000, "ms", 1, 86_400_000, "the longest patience a client may name"),
    _int("default_start_ms", 30_000, "ms", 1, 86_400_000, "patience until the first token of a stream"),
    _float(
        "admission_safety_margin", 0.8, "share of the patience", 0.05, 1.0, "the predicted finish must lie within it"
    ),
    _int("poll_grace_ms", 0, "ms", 0, 86_400_000, "0: off; a job nobody polls for this long is abandoned"),
    _int("lease_ms", 15_000, "ms", 100, 600_000, "how long a silent worker keeps its jobs"),
    _int("max_attempts", 3, "claims", 1, 100, "claims of a job before it is failed as poison"),
    _int("drain_grace_ms", 120_000, "ms", 0, 3_600_000, "how long a stopping worker may finish what runs"),
    _int("stall_ms", 120_000, "ms", 100, 3_600_000, "no token for this long ends the worker process"),
    _int("result_ttl_s", 3_600, "s", 1, 31_536_000, "how long an ended job can be read"),
    _int("default_max_tokens", 256, "tokens", 1, 10_000_000, "when the client names none; clipped to the context"),
    _int("generated_weight", 4, "prompt tokens", 1, 1_000, "what a generated token costs, for turns and hints (w_q)"),
    _text(
        "model", "", "a GGUF file or org/repo[:QUANT or file][@revision]", "unset: the demo model with `penstock up`"
    ),
    _text(
        "model_name",
        "",
        "served name, then aliases, comma-separated",
        "unset: the file's stem or org/repo, never a path",
    ),
    _text(
        "device",
        "auto",
        "auto, cpu, or device numbers such as 0,1",
        "auto: worker i on visible device i",
        pattern=r"auto|cpu|\d+(,\d+)*",
    ),
    _int("n_gpu_layers", -1, "layers", -1, 100_000, "-1: all of them"),
    _int("threads", AUTO, "threads", 1, 1_024, "auto: (usable cores - 1) / workers, at least 1; on a GPU 1", auto=True),
    _int(
        "n_ctx",
        AUTO,
        "tokens",
        16,
        10_000_000,
        "longest job; auto: the smallest of model, KV, 32768 or 8192",
        auto=True,
    ),
    _int("kv_cells", AUTO, "cells", 16, 100_000_000, "shared by all slots; auto: slots x 2048 on a CPU", auto=True),
    _word(
        "pooling",
        "auto",
        ("auto", "none", "mean", "cls", "last"),
        "auto: as the model says; none: it continues text; mean, cls or last: it makes embeddings, pooled so",
    ),
    _word("kv_type", "f16", ("f16", "f32", "q8_0", "q4_0"), "half precision loses nothing one can measure"),
    _int(
        "max_batch_size",
        AUTO,
        "slots",
        1,
        1_024,
        "jobs a worker generates at once; auto: 16 on a GPU, 4 on a CPU",
        auto=True,
    ),
    _int("prefill_chunk", 512, "tokens", 16, 65_536, "most prompt tokens a step"),
    _int(
        "step_target_ms",
        AUTO,
        "ms",
        1,
        60_000,
        "what prompts may add to a step while others decode; auto: 100, CPU 250",
        auto=True,
    ),
    _int("batch_timeout_ms", 0, "ms", 0, 10_000, "how long an idle engine waits for company"),
    _word("engine", "llama", ("llama", "sim"), "sim: the same loop without a model, for load tests"),
    _float("sim_prefill_tps", 2_000.0, "tokens/s", 0.001, 1e9, "prompt tokens per second of a sim slot"),
    _float("sim_decode_tps", 20.0, "tokens/s", 0.001, 1e9, "generated tokens per second of a sim slot"),
    _int("max_body_bytes", 1_048_576, "bytes", 1_024, 1_073_741_824, "a longer request body is 413"),
    _word("log_level", "info", ("debug", "info", "warning", "error"), "info: one line a job and a worker's every 10 s"),
    _word("log_format", "auto", ("auto", "json", "text"), "auto: text on a terminal, JSON elsewhere"),
    _text(
        "worker_listen",
        "",
        "host:port",
        "unset: workers serve no /health and /metrics; port 0: any free one",
        pattern=f"|{_HOST_PORT}",
    ),
    _text(
        "gate_listen",
        "",
        "host:port",
        "unset: `up` starts no TCP gate, `penstock gate` takes 127.0.0.1:7070",
        pattern=f"|{_HOST_PORT}",
    ),
    _text(
        "gate_metrics_listen",
        "",
        "host:port",
        "unset: the gate serves no /health and /metrics; port 0: any free one",
        pattern=f"|{_HOST_PORT}",
    ),
    _int(
        "gate_frame_ms",
        10_000,
        "ms",
        10,
        3_600_000,
        "for a frame to arrive whole; a client reads nothing for as long: cut",
    ),
    _int("gate_idle_ms", 600_000, "ms", 10, 86_400_000, "no frame and no job in flight for this long: closed"),
    _int("gate_max_frames", 256, "jobs", 1, 100_000, "in flight on one connection of the gate"),
    _text(
        "fail_at",
        "",
        "a point of shared/failpoints.py, or point@job id",
        "for tests of faults only: the process kills itself there",
        pattern=failpoints.PATTERN,
    ),
    _text("url", "http://127.0.0.1:8000", "a URL", "where submit, jobs and cancel find the door"),
    _text("api_key", "", "an API key", "what submit, jobs and cancel show the door"),
)
