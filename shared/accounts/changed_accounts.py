"""Notes which accounts a block of code changes, so that the changes can be repeated in other cells.

An account is one record of an operator's configuration: a policy, a key, a route, the terms of a pool, or a tenant's
secrets for webhooks. Each class of this package that changes accounts calls `note_change` after it has written. Only
shared/cells/account_changes.py asks for the notes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from shared.accounts.admin_actions import Actor


class AccountKind(StrEnum):
    """The kinds of accounts, in the order in which they are copied: a tenant's policy may name a group."""

    GROUP = "group"
    TENANT = "tenant"
    WEBHOOKS = "webhook secret"
    KEY = "key"
    ADMIN_KEY = "admin key"
    ROUTE = "route"
    POOL = "pool"


@dataclass(frozen=True)
class AccountChange:
    """One change that was made, as the audit log has it (`Actor`, `what`, `on`), and the accounts that it changed."""

    kind: AccountKind
    #: The names of tenants, groups, routes or models, or the digests of keys.
    names: tuple[str, ...]
    actor: Actor
    what: str
    on: str


_noted: ContextVar[list[AccountChange] | None] = ContextVar("noted_changes", default=None)


@contextmanager
def noted_changes() -> Iterator[list[AccountChange]]:
    """Return the list to which the changes of the block are appended, those of this thread or greenlet only."""
    changes: list[AccountChange] = []
    token = _noted.set(changes)
    try:
        yield changes
    finally:
        _noted.reset(token)


def note_change(change: AccountChange) -> None:
    """Note a change that was written just now. Costs a look-up if nobody asks for notes."""
    changes = _noted.get()
    if changes is not None:
        changes.append(change)
