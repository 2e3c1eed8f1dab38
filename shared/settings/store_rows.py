"""The settings of the store and of the folder in which Penstock keeps its files."""

from shared.settings.setting import AUTO, Setting, int_row, text_row, word_row
from shared.settings.store_url import PATTERN

ROWS: tuple[Setting, ...] = (
    text_row(
        "redis_url",
        "",
        "a URL of Redis >= 6.2 or Valkey",
        "the URL of the store: redis://, rediss://, unix:// or redis+sentinel://, also written valkey://, valkeys://, "
        "redis+unix:// or valkey+sentinel://; REDIS_URL_FILE may name a file with it; "
        "unset: the store in PENSTOCK_STATE_DIR",
        name="REDIS_URL",
        secret=True,
        pattern=f"|{PATTERN}",
    ),
    text_row("state_dir", "", "a folder", "the state folder; unset: `penstock` in the user's data folder"),
    word_row(
        "appendfsync",
        "everysec",
        ("everysec", "always"),
        "for the embedded store; everysec: a power failure loses the last second of admissions; "
        "always: a power failure loses nothing, but admission is slower",
    ),
    int_row(
        "store_max_bytes",
        AUTO,
        "bytes",
        16_777_216,
        10**15,
        "maxmemory of the embedded store, beyond which it refuses jobs; auto: half of the memory that the machine or "
        "the control group has, because the store's memory can double while it rewrites its file",
        auto=True,
    ),
    int_row(
        "ack_replicas",
        0,
        "replicas",
        0,
        16,
        "how many replicas must have a job before its client gets an id; with fewer, jobs are refused; needs REDIS_URL",
    ),
)
