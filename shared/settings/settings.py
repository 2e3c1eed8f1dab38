"""Settings: one frozen dataclass; a field is a row of name, unit, default and reason (shared/settings/table.py).

Read once from the environment (and `.env`); an unknown PENSTOCK_ name or a value out of range stops
the start with a sentence that quotes it.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv import dotenv_values

from shared.errors import ConfigError
from shared.settings.table import AUTO, ROWS, Setting

_LAST_PORT = 65_535
#: Where a gate listens that is started and not told where.
GATE_LISTEN = "127.0.0.1:7070"


@dataclass(frozen=True)
class Settings:
    """Every setting in force. Units and reasons stand in the rows of shared/settings/table.py."""

    redis_url: str
    state_dir: str
    appendfsync: str
    listen: str
    web_workers: int
    auth: str
    admin_key_file: str
    allowed_hosts: str
    cors_origins: str
    dashboard: str
    admission: str
    max_inflight: int
    max_queue_size: int
    max_queue_tokens: int
    max_wait_ms: int
    tenant_bound_status: int
    fairness: str
    degradation: str
    default_deadline_ms: int
    max_deadline_ms: int
    default_start_ms: int
    admission_safety_margin: float
    poll_grace_ms: int
    lease_ms: int
    max_attempts: int
    drain_grace_ms: int
    stall_ms: int
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
    batch_timeout_ms: int
    engine: str
    sim_prefill_tps: float
    sim_decode_tps: float
    max_body_bytes: int
    log_level: str
    log_format: str
    worker_listen: str
    gate_listen: str
    gate_metrics_listen: str
    gate_frame_ms: int
    gate_idle_ms: int
    gate_max_frames: int
    fail_at: str
    url: str
    api_key: str

    @property
    def state_path(self) -> Path:
        """The state folder; the per-user data folder when none is set. Raises ConfigError where there is no home."""
        if self.state_dir:
            return expanded("PENSTOCK_STATE_DIR", self.state_dir).resolve()
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return expanded("PENSTOCK_STATE_DIR", base) / "penstock"

    @property
    def listen_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_LISTEN` as (host, port)."""
        return _host_port(self.listen)

    @property
    def gate_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_GATE_LISTEN` as (host, port); where the gate listens when it is unset."""
        return _host_port(self.gate_listen or GATE_LISTEN)

    @property
    def gate_metrics_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_GATE_METRICS_LISTEN` as (host, port); it must be set."""
        return _host_port(self.gate_metrics_listen)


#: What holds for the whole system: written to the store by the first process, compared by every later one.
SYSTEM_WIDE = (
    "admission",
    "max_inflight",
    "max_queue_size",
    "max_queue_tokens",
    "max_wait_ms",
    "fairness",
    "degradation",
    "lease_ms",
    "max_attempts",
    "result_ttl_s",
    "generated_weight",
    "admission_safety_margin",
    "poll_grace_ms",
)

#: What Kubernetes puts into every pod's environment for a Service called penstock.
_KUBERNETES = re.compile(r"PENSTOCK_(SERVICE_HOST|SERVICE_PORT\w*|PORT\w*)\Z")


def load(environ: Mapping[str, str] | None = None, dotenv: Path | None = Path(".env"), **overrides: object) -> Settings:
    """Read the settings from `environ` (default: the process's), then `.env` for names it lacks.

    `overrides` are values of the command line by field name; None means not given.
    Raises ConfigError on an unknown PENSTOCK_ name or a value that does not fit its row.
    """
    return load_with_origin(environ, dotenv, **overrides)[0]


def load_with_origin(
    environ: Mapping[str, str] | None = None, dotenv: Path | None = Path(".env"), **overrides: object
) -> tuple[Settings, dict[str, str]]:
    """As `load`, and whence each field came: `default`, `environment`, the file's name or `command line`."""
    env = dict(os.environ if environ is None else environ)
    from_file = {}
    if dotenv is not None and dotenv.is_file():
        from_file = _file(dotenv)
    _refuse_unknown(env, "environment")
    _refuse_unknown(from_file, str(dotenv))
    values: dict[str, object] = {}
    origin: dict[str, str] = {}
    for row in ROWS:
        given = overrides.get(row.field)
        if given is not None:
            values[row.field], origin[row.field] = row.parse(str(given)), "command line"
        elif row.name in env:
            values[row.field], origin[row.field] = row.parse(env[row.name]), "environment"
        elif row.name in from_file:
            values[row.field], origin[row.field] = row.parse(from_file[row.name]), str(dotenv)
        else:
            values[row.field], origin[row.field] = row.default, "default"
    unknown = set(overrides) - {row.field for row in ROWS}
    if unknown:
        raise ConfigError(f"no such setting: {', '.join(sorted(unknown))}")
    settings = Settings(**values)  # type: ignore[arg-type]  # rows and fields are compared by a test
    _check_together(settings)
    return settings, origin


def as_environ(settings: Settings) -> dict[str, str]:
    """The settings as environment variables, for a child process; `load` of it gives equal settings.

    Every name is there, at its default too: what is missing the child would look for in `.env`.
    """
    environ = {}
    for row in ROWS:
        value = getattr(settings, row.field)
        environ[row.name] = "auto" if value == AUTO and row.auto else str(value)
    return environ


def row_of(field: str) -> Setting:
    """The row of a field name. Raises KeyError when there is none."""
    return {row.field: row for row in ROWS}[field]


def expanded(name: str, text: str) -> Path:
    """The path that a setting means. Raises ConfigError when it begins with a home that nobody has."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{name}={text!r} begins with a home folder that is not known; name another") from None


def _file(path: Path) -> dict[str, str]:
    try:
        return {name: value for name, value in dotenv_values(path).items() if value is not None}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {path.absolute()} cannot be read: {error}") from None


def _refuse_unknown(names: Mapping[str, str], where: str) -> None:
    known = {row.name for row in ROWS}
    for name in sorted(names):
        if name.startswith("PENSTOCK_") and name not in known and not _KUBERNETES.match(name):
            raise ConfigError(f"unknown setting {name}={names[name]!r} in the {where}; `penstock config` lists all")


def _check_together(settings: Settings) -> None:
    if settings.default_deadline_ms > settings.max_deadline_ms:
        raise ConfigError(
            f"PENSTOCK_DEFAULT_DEADLINE_MS={settings.default_deadline_ms} is over "
            f"PENSTOCK_MAX_DEADLINE_MS={settings.max_deadline_ms}"
        )
    for row in ROWS:
        address = str(getattr(settings, row.field))
        if row.field.endswith("listen") and address and _host_port(address)[1] > _LAST_PORT:
            raise ConfigError(f"{row.name}={address!r} is out of range: a port is 0 to {_LAST_PORT}")
    doors = {"PENSTOCK_LISTEN": settings.listen, "PENSTOCK_GATE_LISTEN": settings.gate_listen or GATE_LISTEN}
    for name, listen in doors.items():
        if settings.auth == "open" and _host_port(listen)[0] not in {"127.0.0.1", "localhost", "::1"}:
            raise ConfigError(f"PENSTOCK_AUTH=open is for loopback only, and {name}={listen!r} is not")


def _host_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)
