"""Reads keys and policies, which every cell has, from a cell that answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import redis

from shared.accounts.admin_keys import AdminKeys
from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import Tenants

T = TypeVar("T")


@dataclass(frozen=True)
class Accounts:
    """The keys and policies in one cell."""

    api_keys: ApiKeys
    tenants: Tenants
    admin_keys: AdminKeys

    @classmethod
    def of_store(cls, client: redis.Redis) -> "Accounts":
        return cls(ApiKeys(client), Tenants(client), AdminKeys(client))


class AskAccounts(Protocol):
    """Calls a function with the accounts of a cell that answers, and returns its answer. Raises StoreUnavailable."""

    def __call__(self, read: Callable[[Accounts], T], /) -> T: ...


def ask_one(accounts: Accounts) -> AskAccounts:
    """Return a function that asks these accounts, of the only cell."""

    def ask(read: Callable[[Accounts], T], /) -> T:
        return read(accounts)

    return ask
