"""The closed list of conditions that an alert can be about. docs/alerts.md has the same list for operators."""

from dataclasses import dataclass
from enum import StrEnum


class Condition(StrEnum):
    """A condition; its value is published in alerts."""

    STORE_AWAY = "store_away"
    STORE_REFUSES_WRITES = "store_refuses_writes"
    STORE_UNFIT = "store_unfit"
    STORE_MEMORY = "store_memory"
    DISK = "disk"
    MODEL_NOT_SERVED = "model_not_served"
    WORKERS_RESTART = "workers_restart"
    REFUSALS = "refusals"
    PROMISES = "promises"
    BUDGET = "budget"
    WEBHOOKS_LATE = "webhooks_late"
    CLOCK_AHEAD = "clock_ahead"


#: The store's memory in use, over its maxmemory.
MEMORY_RATIO = 0.9
#: Free space over all space, of the disk of an embedded store.
DISK_FREE_RATIO = 0.05
#: Kept promises over judged ones, and in how many judged ones of the last 15 minutes.
PROMISES_KEPT, FEWEST_PROMISES = 0.97, 50
#: The fewest requests of ten minutes whose refusals are judged.
FEWEST_REQUESTS = 20
#: The age of the oldest webhook that is not delivered.
WEBHOOK_AGE_MS = 900_000
#: By how much the queue's time is ahead of the clock of the store's machine.
AHEAD_MS = 5_000

_MAX_TEXT = 300


@dataclass(frozen=True)
class Finding:
    """A condition that holds now, for one subject: a model, a tenant, a machine, or "" for the whole system."""

    condition: Condition
    subject: str
    text: str

    @property
    def key(self) -> str:
        return f"{self.condition.value}|{self.subject}"


def finding(condition: Condition, subject: str, sentence: str) -> Finding:
    """Return a finding whose texts are printable and bounded: names of models come from clients."""
    return Finding(condition, _plain(subject), _plain(sentence))


def _plain(words: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in words)
    return printable if len(printable) <= _MAX_TEXT else f"{printable[: _MAX_TEXT - 1]}…"
