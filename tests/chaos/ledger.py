"""The clients' ledger: one JSON line for everything that a client was told, written before the client continues.

`t` is in seconds of the monotonic clock, which all processes of one machine share, and `wall` in those of the epoch.

    ack       a client got a job's id: ref, key, via, since (when it sent the request), owned
    refused   a yield: ref, key, reason
    unknown   no answer: ref, key
    vanished  the job of a submit that waits for its end is gone: ref, since
    canceled  a client is about to cancel the job or to leave the connection that owns it
    read      what a read of the tenant's own job returned: job
    missing   a read of the tenant's own job returned 404
    stream    a followed stream ended: text, and how often its end was announced
    started again   a followed job that has shown text runs again: tokens shown so far, resumed snoop     what a read of
    another tenant's job returned: status anomaly   what no client may ever see: what
"""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

#: The fields of a job that a later read must return unchanged once the job has ended.
ENDING_FIELDS = ("status", "text", "finish_reason", "usage", "error", "started_at", "ended_at", "attempts")
ENDED = {"succeeded", "failed", "canceled", "expired"}


def ending_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an ended job that never change again."""
    return {name: job[name] for name in ENDING_FIELDS}


class LedgerFile:
    """The ledger of one client process; its users write to it from several threads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Append one line; it is in the file when this method returns, even if the process is killed then."""
        line = json.dumps({"event": event, "t": time.monotonic(), "wall": time.time()} | fields)
        with self._lock:
            self._file.write(line + "\n")


class Ledger:
    """All entries of all client processes of one run, in the order of their times."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = sorted(entries, key=lambda entry: float(entry["t"]))

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        """Read all ledgers in the folder; the last line of a process that was killed may be incomplete."""
        lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines(keepends=True)]
        return cls(json.loads(line) for line in lines if line.endswith("\n"))

    def of(self, event: str) -> list[Entry]:
        """Return the entries of one kind."""
        return [entry for entry in self.entries if entry["event"] == event]

    def by(self, event: str, field: str) -> dict[str, list[Entry]]:
        """Return the entries of one kind, grouped by a field."""
        groups: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.of(event):
            groups[entry[field]].append(entry)
        return groups

    def counts(self) -> dict[str, Any]:
        """Return how often each kind occurred, and how the admitted jobs and the refusals divide."""
        return {
            "events": dict(Counter(entry["event"] for entry in self.entries)),
            "acknowledged_by_route": dict(Counter(entry["via"] for entry in self.of("ack"))),
            "refusals": dict(Counter(entry["reason"] for entry in self.of("refused"))),
        }
