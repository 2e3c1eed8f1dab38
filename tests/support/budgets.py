"""Reads and sets budgets in tests of scripts, and ends the jobs that count in them."""

from typing import Any

from shared.accounts.tenants import Tenants
from shared.jobs.job import Usage
from shared.store import keys
from shared.store.store import Store
from tests.support.builders import an_ending, claim_one, heartbeat

#: 2027-01-15 and 2027-01-31, 23:59:50 UTC.
MIDDLE_MS, LAST_MS = 1_800_057_600_000 - 10_000, 1_801_440_000_000 - 10_000
#: The tokens reserved for the job of `a_job`: 10 of the prompt and at most 20 of the answer.
MOST = 30


def at(store: Store, ms: int) -> None:
    """Let the store's time stand at `ms`, with a live worker."""
    store.client.set(keys.clock(), f"={ms}")
    heartbeat(store)


def counted(store: Store, owner: str = "blue") -> tuple[int, int, int]:
    """Return an owner's tokens of the last day on which something was counted, of its month, and what is reserved."""
    _, day, month, reserved = store.client.hget(keys.tenant(owner), "budget").decode().split()
    return int(day), int(month), int(reserved)


def set_budget(store: Store, **fields: Any) -> None:
    Tenants(store.client).change("blue", fields)


def end_one(store: Store, prompt: int = 10, answer: int = 20) -> None:
    store.settle(an_ending(claim_one(store).held, usage=Usage(prompt, 0, answer)), "w1")
