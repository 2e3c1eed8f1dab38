"""The settings of logs, of fault tests and of the commands that call the door."""

from dataclasses import dataclass

from shared import failpoints
from shared.settings.setting import text, word


@dataclass(frozen=True)
class CommonSettings:
    """Logs, fault tests, and the commands that call the door."""

    log_level: str = word(
        "info", ("debug", "info", "warning", "error"), "info: one line per job, and one per worker every 10 s"
    )
    log_format: str = word("auto", ("auto", "json", "text"), "auto: text on a terminal, JSON elsewhere")
    traces: str = word(
        "off", ("off", "on"), "on: the door and workers send OpenTelemetry traces, as OTEL_* variables say"
    )
    fail_at: str = text(
        "",
        "a point of shared/failpoints.py, or point@job id",
        "for fault tests only: the point at which the process kills itself",
        pattern=failpoints.PATTERN,
    )
    url: str = text("http://127.0.0.1:8000", "a URL", "the door's address for `penstock submit`, `jobs` and `cancel`")
    api_key: str = text(
        "",
        "an API key",
        "the key that `penstock submit`, `jobs` and `cancel` send; PENSTOCK_API_KEY_FILE may name a file with it",
        secret=True,
    )
