"""The table of all settings: the environment name, default, unit, range and meaning of each.

`make docs` generates `.env.example` and docs/settings.md from this table, and a test checks that they match it.
"""

import re
from dataclasses import dataclass
from typing import Literal

from shared import failpoints
from shared.errors import ConfigError

#: The integer that represents `auto` in those settings that allow it.
AUTO = -2

Value = str | int | float


@dataclass(frozen=True)
class Setting:
    """One setting.

    If given, `choices` and `pattern` restrict the value of a text setting, and `low` and `high` that of a number.
    `why` explains what the setting does and, where the reason for the default is not obvious, also that reason.
    """

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
        """Return the value that `text` represents. Raises ConfigError, whose message names the setting and quotes `text`."""
        text = text.strip()
        if self.auto and text.lower() == "auto":
            return AUTO
        if self.kind == "text":
            return self._check_text(text)
        try:
            number = int(text) if self.kind == "int" else float(text)
        except ValueError:
            expected = "a whole number" if self.kind == "int" else "a number"
            raise ConfigError(f"{self.name}={text!r} is not {expected}{' or auto' if self.auto else ''}") from None
        if not (self.low is None or number >= self.low) or not (self.high is None or number <= self.high):
            allowed = f"{self._format_bound(self.low)} to {self._format_bound(self.high)}"
            raise ConfigError(f"{self.name}={text!r} is out of range: {allowed}")
        return number

    def _check_text(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name}={text!r} is not one of {', '.join(self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise ConfigError(f"{self.name}={text!r} does not look like {self.unit}")
        return text

    @staticmethod
    def _format_bound(number: float | None) -> str:
        return "any" if number is None else f"{number:g}"

    @property
    def shown_default(self) -> str:
        """The default as it would be written in `.env`."""
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
        "the URL of the store; unset: the embedded store in PENSTOCK_STATE_DIR",
        name="REDIS_URL",
        pattern=r"|(redis|rediss|unix|redis\+sentinel)://.*",
    ),
    _text("state_dir", "", "a folder", "the state folder; unset: `penstock` in the user's data folder"),
    _word(
        "appendfsync",
        "everysec",
        ("everysec", "always"),
        "for the embedded store; everysec: a power failure loses the last second of admissions; "
        "always: a power failure loses nothing, but admission is slower",
    ),
    _text(
        "listen", "127.0.0.1:8000", "host:port", "the door's address; the default is loopback only", pattern=_HOST_PORT
    ),
    _int("web_workers", 2, "processes", 1, 64, "HTTP processes of the door; one can restart while others serve"),
    _word(
        "auth",
        "required",
        ("required", "open"),
        "open (loopback addresses only): API keys are ignored, and the X-Tenant header names the tenant",
    ),
    _text(
        "admin_key_file", "", "a file", "unset: admin.key in the state folder; a missing file is created with mode 0600"
    ),
    _text(
        "allowed_hosts",
        "",
        "host names, comma-separated",
        "accepted Host headers; others get status 421, against DNS rebinding; unset: loopback names",
    ),
    _text("cors_origins", "", "origins, comma-separated", "origins whose web pages may read answers; unset: none"),
    _word("dashboard", "auto", ("auto", "off", "read", "write"), "auto: read on loopback addresses, otherwise off"),
    _word("admission", "full", ("full", "bounds"), "bounds: admit without checks of share, backlog and deadline"),
    _int(
        "max_inflight",
        AUTO,
        "jobs",
        1,
        10_000_000,
        "inflight jobs of all tenants; auto: max(64, 4 x live slots); a low bound weakens the isolation of tenants",
        auto=True,
    ),
    _int(
        "max_queue_size", AUTO, "jobs", 1, 1_000_000, "queued jobs per tenant; auto: max(16, 2 x live slots)", auto=True
    ),
    _int("max_queue_tokens", 65_536, "tokens", 1, 10**12, "bound on prompt tokens plus max_tokens of a tenant's queue"),
    _int("max_wait_ms", 8_000, "ms", 1, 3_600_000, "longest time that a pool's queued work may take to compute"),
    _int(
        "tenant_bound_status",
        503,
        "HTTP status",
        400,
        599,
        "status of refusals by a tenant's own bounds; set 429 if a service mesh ejects backends on 5xx",
    ),
    _word(
        "fairness",
        "tokens",
        ("tokens", "turns"),
        "tokens: each job costs its weighted tokens; turns: every job costs the same (weighted round robin)",
    ),
    _word(
        "degradation",
        "off",
        ("off", "on"),
        "on: under overload, tenants that opted in get shorter answers instead of refusals or late answers",
    ),
    _int("default_deadline_ms", 120_000, "ms", 1, 86_400_000, "deadline of requests that do not name one"),
    _int("max_deadline_ms", 600_000, "ms", 1, 86_400_000, "the longest deadline that a request may name"),
    _int("default_start_ms", 30_000, "ms", 1, 86_400_000, "start deadline of streaming requests that do not name one"),
    _float(
        "admission_safety_margin", 0.8, "fraction of the deadline", 0.05, 1.0, "latest predicted end of an admitted job"
    ),
    _int("poll_grace_ms", 0, "ms", 0, 86_400_000, "a job that no client polls for this long is canceled; 0: never"),
    _int("lease_ms", 15_000, "ms", 100, 600_000, "how long a worker keeps a job without renewing its lease"),
    _int("max_attempts", 3, "claims", 1, 100, "a job whose lease ends on the last of these claims fails as poison"),
    _int("drain_grace_ms", 120_000, "ms", 0, 3_600_000, "how long a draining worker may take to finish its jobs"),
    _int("stall_ms", 120_000, "ms", 100, 3_600_000, "a worker whose jobs produce no token for this long exits"),
    _int("result_ttl_s", 3_600, "s", 1, 31_536_000, "how long an ended job and its result can be read"),
    _int(
        "default_max_tokens", 256, "tokens", 1, 10_000_000, "max_tokens of requests that set none; cut to the context"
    ),
    _int("generated_weight", 4, "prompt tokens", 1, 1_000, "cost of a generated token; a prompt token costs 1"),
    _text(
        "model", "", "a GGUF file or org/repo[:QUANT or file][@revision]", "unset: `penstock up` uses the demo model"
    ),
    _text(
        "model_name",
        "",
        "served name, then aliases, comma-separated",
        "unset: the file name without its extension, or org/repo; never a path",
    ),
    _text(
        "device",
        "auto",
        "auto, cpu, or device numbers such as 0,1",
        "auto: worker number i uses visible device number i",
        pattern=r"auto|cpu|\d+(,\d+)*",
    ),
    _int("n_gpu_layers", -1, "layers", -1, 100_000, "layers of the model that run on the GPU; -1: all"),
    _int("threads", AUTO, "threads", 1, 1_024, "auto: (usable cores - 1) / workers, at least 1; 1 on a GPU", auto=True),
    _int(
        "n_ctx",
        AUTO,
        "tokens",
        16,
        10_000_000,
        "the longest job a worker accepts, in tokens of prompt and answer; "
        "auto: the smallest of the model's context, the KV cells, and 32768 (GPU) or 8192 (CPU)",
        auto=True,
    ),
    _int(
        "kv_cells",
        AUTO,
        "cells",
        16,
        100_000_000,
        "KV cells, shared by all slots; auto: slots x 2048 on a CPU; on a GPU, as memory allows, up to slots x n_ctx",
        auto=True,
    ),
    _word(
        "pooling",
        "auto",
        ("auto", "none", "mean", "cls", "last"),
        "auto: as set in the model file; none: generate text; mean, cls, last: compute embeddings with this pooling",
    ),
    _word(
        "kv_type",
        "f16",
        ("f16", "f32", "q8_0", "q4_0"),
        "number format of the KV cells; f16 loses no measurable quality",
    ),
    _int(
        "max_batch_size",
        AUTO,
        "slots",
        1,
        1_024,
        "jobs that a worker runs at once; auto: 16 on a GPU, 4 on a CPU",
        auto=True,
    ),
    _int("prefill_chunk", 512, "tokens", 16, 65_536, "maximum number of prompt tokens in one step"),
    _int(
        "step_target_ms",
        AUTO,
        "ms",
        1,
        60_000,
        "longest time that new jobs' prompts may add to a step while other jobs decode; auto: 100 on a GPU, 250 on a CPU",
        auto=True,
    ),
    _int("batch_timeout_ms", 0, "ms", 0, 10_000, "how long an idle engine waits for more jobs before its first step"),
    _word("engine", "llama", ("llama", "sim"), "sim: the same loop with a simulated model, for load tests"),
    _float("sim_prefill_tps", 2_000.0, "tokens/s", 0.001, 1e9, "prompt tokens per second of a sim slot"),
    _float("sim_decode_tps", 20.0, "tokens/s", 0.001, 1e9, "generated tokens per second of a sim slot"),
    _int("max_body_bytes", 1_048_576, "bytes", 1_024, 1_073_741_824, "longer request bodies get status 413"),
    _word(
        "log_level",
        "info",
        ("debug", "info", "warning", "error"),
        "info: one line per job, and one per worker every 10 s",
    ),
    _word("log_format", "auto", ("auto", "json", "text"), "auto: text on a terminal, JSON elsewhere"),
    _text(
        "worker_listen",
        "",
        "host:port",
        "a worker's address for /health and /metrics; unset: not served; port 0: any free port",
        pattern=f"|{_HOST_PORT}",
    ),
    _text(
        "gate_listen",
        "",
        "host:port",
        "the TCP gate's address; unset: `penstock up` starts no gate, `penstock gate` uses 127.0.0.1:7070",
        pattern=f"|{_HOST_PORT}",
    ),
    _text(
        "gate_metrics_listen",
        "",
        "host:port",
        "the gate's address for /health and /metrics; unset: not served; port 0: any free port",
        pattern=f"|{_HOST_PORT}",
    ),
    _int(
        "gate_frame_ms",
        10_000,
        "ms",
        10,
        3_600_000,
        "a frame that takes longer to arrive is refused; a client that reads nothing for this long is disconnected",
    ),
    _int("gate_idle_ms", 600_000, "ms", 10, 86_400_000, "a connection without frames or jobs for this long is closed"),
    _int("gate_max_frames", 256, "jobs", 1, 100_000, "bound on the jobs in flight on one gate connection"),
    _text(
        "fail_at",
        "",
        "a point of shared/failpoints.py, or point@job id",
        "for fault tests only: the point at which the process kills itself",
        pattern=failpoints.PATTERN,
    ),
    _text("url", "http://127.0.0.1:8000", "a URL", "the door's address for `penstock submit`, `jobs` and `cancel`"),
    _text("api_key", "", "an API key", "the key that `penstock submit`, `jobs` and `cancel` send to the door"),
)
