"""The settings of the store, of the folder in which Penstock keeps its files, and of files and batches."""

import os
from dataclasses import dataclass
from pathlib import Path

from shared.settings.setting import AUTO, expand_path, number, text, word
from shared.settings.store_url import PATTERN
from shared.state_dir import find_key_prefix, find_url


@dataclass(frozen=True)
class StoreSettings:
    """The store and the state folder."""

    redis_url: str = text(
        "",
        "a URL of Redis >= 6.2 or Valkey",
        "the URL of the store: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://, also written "
        "valkey://, valkeys://, redis+unix://, valkey+sentinel:// or valkey+cluster://; REDIS_URL_FILE may name "
        "a file with it; unset: the store in PENSTOCK_STATE_DIR",
        secret=True,
        pattern=f"|{PATTERN}",
        prefix="",
    )
    key_prefix: str = text(
        "",
        "a key prefix such as {c7}: or staging:",
        "what all keys of this deployment begin with, RQ's included, so that several deployments can share a store: up "
        "to 64 letters, digits and _ . : -, at most one text in braces, and a colon at the end",
    )
    state_dir: str = text("", "a folder", "the state folder; unset: `penstock` in the user's data folder")
    appendfsync: str = word(
        "everysec",
        ("everysec", "always"),
        "for the embedded store; everysec: a power failure loses the last second of admissions; "
        "always: a power failure loses nothing, but admission is slower",
    )
    store_max_bytes: int = number(
        AUTO,
        "bytes",
        (16_777_216, 10**15),
        "maxmemory of the embedded store, beyond which it refuses jobs; auto: half of the memory that the machine or "
        "the control group has, because the store's memory can double while it rewrites its file",
    )
    ack_replicas: int = number(
        0,
        "replicas",
        (0, 16),
        "how many replicas must have a job before its client gets an id; with fewer, jobs are refused; needs REDIS_URL",
    )

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
    def store_url(self) -> str:
        """REDIS_URL if it is set, else the URL of the store that `penstock up` runs in the state folder.

        Raises EmbeddedStoreError if REDIS_URL is not set and no such store runs.
        """
        return self.redis_url or find_url(self.state_path)

    @property
    def store_prefix(self) -> str:
        """PENSTOCK_KEY_PREFIX if it is set, else that with which `penstock up` runs the store in the state folder."""
        return self.key_prefix or ("" if self.redis_url else find_key_prefix(self.state_path))


@dataclass(frozen=True)
class BatchSettings:
    """Files and batches."""

    files_dir: str = text(
        "", "a folder", "where the contents of files are kept, shared by all doors of a store; unset: in the store"
    )
    max_file_bytes: int = number(104_857_600, "bytes", (1_024, 1_073_741_824), "longer files get status 413")
    max_files_bytes: int = number(
        AUTO,
        "bytes",
        (2**20, 10**15),
        "what the files and batches of all tenants may take; auto: half of the store's memory, or 10 GiB of a folder",
        system_wide=True,
    )
    file_ttl_s: int = number(
        2_592_000, "s", (3_600, 31_536_000), "how long files are kept; 30 days, as OpenAI keeps batch files"
    )
    max_batch_lines: int = number(50_000, "lines", (1, 1_000_000), "lines of one batch; the default is OpenAI's bound")
    batch_lines_at_once: int = number(
        64,
        "lines",
        (1, 1_024),
        "lines of one batch that are queued or run at once; a few times the slots of a pool keep its workers busy",
    )
