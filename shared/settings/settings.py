"""Reads all settings into one frozen dataclass; each field has a row in shared/settings/table.py.

A row holds the environment name, the default, the unit, the range and the meaning of one setting. A process reads its
settings once, when it starts, from the command line, the environment and `.env`. An unknown PENSTOCK_ name or a value
out of range raises ConfigError, whose message quotes the name or the value, and the process does not start.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv import dotenv_values

from shared.errors import ConfigError
from shared.settings.combinations import GATE_LISTEN, check_combinations, host_port
from shared.settings.engines import ENGINES, EngineKind
from shared.settings.secret_values import read_secret_file
from shared.settings.setting import AUTO, Setting
from shared.settings.table import ROWS, check_names_known


@dataclass(frozen=True)
class Settings:
    """The settings in force. The unit and the meaning of each field are in shared/settings/table.py."""

    redis_url: str
    state_dir: str
    appendfsync: str
    store_max_bytes: int
    ack_replicas: int
    listen: str
    web_workers: int
    auth: str
    admin_key_file: str
    allowed_hosts: str
    trusted_proxies: str
    failed_keys_per_minute: int
    cors_origins: str
    dashboard: str
    tenant_bound_status: int
    webhook_hosts: str
    max_body_bytes: int
    request_head_ms: int
    request_body_ms: int
    max_connections: int
    max_address_connections: int
    max_tenant_requests: int
    max_open_head_bytes: int
    max_open_body_bytes: int
    max_tenant_body_bytes: int
    sign_in_proxies: str
    sign_in_roles: str
    oidc_issuer: str
    oidc_audience: str
    oidc_groups_claim: str
    oidc_name_claim: str
    gate_listen: str
    gate_metrics_listen: str
    gate_frame_ms: int
    gate_idle_ms: int
    gate_max_connections: int
    gate_max_connections_per_address: int
    gate_stranger_bytes: int
    gate_stranger_frame_ms: int
    gate_stranger_idle_ms: int
    gate_max_frames: int
    files_dir: str
    max_file_bytes: int
    max_files_bytes: int
    file_ttl_s: int
    max_batch_lines: int
    batch_lines_at_once: int
    admission: str
    max_inflight: int
    max_queue_size: int
    max_queue_tokens: int
    max_tenant_bytes: int
    max_wait_ms: int
    fairness: str
    preemption: str
    quantum_ms: int
    degradation: str
    default_deadline_ms: int
    max_deadline_ms: int
    default_start_ms: int
    admission_safety_margin: float
    poll_grace_ms: int
    lease_ms: int
    max_attempts: int
    result_ttl_s: int
    default_max_tokens: int
    generated_weight: int
    model: str
    model_name: str
    device: str
    n_gpu_layers: int
    threads: int
    n_ctx: int
    kv_cells: int
    pooling: str
    kv_type: str
    max_batch_size: int
    prefill_chunk: int
    step_target_ms: int
    speculation: str
    batch_timeout_ms: int
    max_schema_bytes: int
    schema_cpu_ms: int
    schema_step_ms: float
    template_cpu_ms: int
    unknown_formats: str
    tools_without_template: str
    prepare_threads: int
    engine: str
    sim_prefill_tps: float
    sim_decode_tps: float
    resume_tokens: int
    paused_bytes: int
    drain_grace_ms: int
    stall_ms: int
    worker_listen: str
    upstream_url: str
    upstream_api_key: str
    upstream_model: str
    upstream_concurrency: int
    upstream_first_token_ms: int
    upstream_gap_ms: int
    upstream_max_tokens: int
    log_level: str
    log_format: str
    traces: str
    fail_at: str
    url: str
    api_key: str

    @property
    def state_path(self) -> Path:
        """The state folder: PENSTOCK_STATE_DIR, or `penstock` in the user's data folder if it is not set.

        Raises ConfigError if the path starts with `~` and the home directory is not known.
        """
        if self.state_dir:
            return expand_path("PENSTOCK_STATE_DIR", self.state_dir).resolve()
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return expand_path("PENSTOCK_STATE_DIR", base) / "penstock"

    @property
    def engine_kind(self) -> EngineKind:
        """The needs of the engine that `PENSTOCK_ENGINE` names."""
        return ENGINES[self.engine]

    @property
    def preempts(self) -> bool:
        """Whether running jobs are paused in favor of others."""
        return self.preemption == "on" or (self.preemption == "auto" and self.fairness == "tokens")

    @property
    def listen_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_LISTEN` as (host, port)."""
        return host_port(self.listen)

    @property
    def gate_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_GATE_LISTEN` as (host, port), or the default address if it is not set."""
        return host_port(self.gate_listen or GATE_LISTEN)

    @property
    def gate_metrics_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_GATE_METRICS_LISTEN` as (host, port); it must be set."""
        return host_port(self.gate_metrics_listen)


#: Settings that must be equal in all processes. The first process writes them to the store, and each later process
#: compares its own settings with them.
SYSTEM_WIDE = (
    "admission",
    "max_inflight",
    "max_queue_size",
    "max_queue_tokens",
    "max_tenant_bytes",
    "max_files_bytes",
    "max_wait_ms",
    "fairness",
    "preemption",
    "quantum_ms",
    "degradation",
    "lease_ms",
    "max_attempts",
    "result_ttl_s",
    "generated_weight",
    "admission_safety_margin",
    "poll_grace_ms",
)

#: The command-line options that are not named like the field that they override.
_OPTIONS = {
    "gate_listen": "--listen",
    "max_batch_size": "--slots",
    "n_ctx": "--context",
    "upstream_url": "--upstream",
}


def load(environ: Mapping[str, str] | None = None, dotenv: Path | None = Path(".env"), **overrides: object) -> Settings:
    """Read the settings from `environ` (default: the process's environment); names missing there are read from `.env`.

    `overrides` maps field names to values from the command line; None means that the option was not used.
    Raises ConfigError for an unknown PENSTOCK_ name and for an invalid value. The message names the setting, or the
    option if the value comes from the command line.
    """
    return load_with_origin(environ, dotenv, **overrides)[0]


def load_with_origin(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = Path(".env"), **overrides: object
) -> tuple[Settings, dict[str, str]]:
    """Read the settings as `load` does, and return (the settings, the origin of each field).

    An origin is `default`, `environment`, the name of the `.env` file or `command line`.
    """
    env = dict(os.environ if environ is None else environ)
    from_file = {}
    if dotenv is not None and dotenv.is_file():
        from_file = _read_dotenv(dotenv)
    check_names_known(env, "environment")
    check_names_known(from_file, str(dotenv))
    values: dict[str, object] = {}
    origin: dict[str, str] = {}
    for row in ROWS:
        given = overrides.get(row.field)
        if given is not None:
            option = _OPTIONS.get(row.field, f"--{row.field.replace('_', '-')}")
            values[row.field], origin[row.field] = row.parse(str(given), option=option), "command line"
            continue
        values[row.field], origin[row.field] = row.default, "default"
        for source, names in (("environment", env), (str(dotenv), from_file)):
            text = _text_of(row, names, source)
            if text is not None:
                values[row.field], origin[row.field] = row.parse(text), source
                break
    unknown = set(overrides) - {row.field for row in ROWS}
    if unknown:
        raise ConfigError(f"no such setting: {', '.join(sorted(unknown))}")
    settings = Settings(**values)  # type: ignore[arg-type]  # a test compares rows and fields
    check_combinations(settings)
    return settings, origin


def as_environ(settings: Settings) -> dict[str, str]:
    """Return the settings as environment variables for a child process, whose `load` then returns equal settings.

    Settings that have their default value are included, because the child would look for missing names in `.env`.
    """
    environ = {}
    for row in ROWS:
        value = getattr(settings, row.field)
        environ[row.name] = "auto" if value == AUTO and row.auto else str(value)
        if row.secret:
            # The child inherits this process's environment, which may name the file from which the value was read.
            environ[row.file_name] = ""
    return environ


def row_of(field: str) -> Setting:
    """Return the settings row for a field. Raises KeyError if there is no such field."""
    return {row.field: row for row in ROWS}[field]


def expand_path(name: str, text: str) -> Path:
    """Return `text`, the value of the setting `name`, as a path with `~` expanded.

    Raises ConfigError if the path starts with `~` and the home directory is not known.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{name}={text!r} starts with a home folder that is not known; use another path") from None


def _text_of(row: Setting, names: Mapping[str, str], source: str) -> str | None:
    """Return the text of a setting in one source, or None if the source does not set it.

    Raises ConfigError if the source sets a secret both as a value and by the name of a file, or if the file cannot be
    used.
    """
    path = names.get(row.file_name, "") if row.secret else ""
    if not path:
        return names.get(row.name)
    if names.get(row.name):
        raise ConfigError(f"{row.name} and {row.file_name}={path!r} are both set in the {source}; set one of them")
    return read_secret_file(row.file_name, path)


def _read_dotenv(path: Path) -> dict[str, str]:
    try:
        return {name: value for name, value in dotenv_values(path).items() if value is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {path.absolute()} cannot be read: {error}") from None
