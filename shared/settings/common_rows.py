"""The settings of logs, of fault tests and of the commands that call the door."""

from shared import failpoints
from shared.settings.setting import Setting, text_row, word_row

ROWS: tuple[Setting, ...] = (
    word_row(
        "log_level",
        "info",
        ("debug", "info", "warning", "error"),
        "info: one line per job, and one per worker every 10 s",
    ),
    word_row("log_format", "auto", ("auto", "json", "text"), "auto: text on a terminal, JSON elsewhere"),
    word_row(
        "traces",
        "off",
        ("off", "on"),
        "on: the door and workers send OpenTelemetry traces, as OTEL_* variables say",
    ),
    text_row(
        "fail_at",
        "",
        "a point of shared/failpoints.py, or point@job id",
        "for fault tests only: the point at which the process kills itself",
        pattern=failpoints.PATTERN,
    ),
    text_row("url", "http://127.0.0.1:8000", "a URL", "the door's address for `penstock submit`, `jobs` and `cancel`"),
    text_row(
        "api_key",
        "",
        "an API key",
        "the key that `penstock submit`, `jobs` and `cancel` send; PENSTOCK_API_KEY_FILE may name a file with it",
        secret=True,
    ),
)
