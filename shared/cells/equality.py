"""Checks that all cells have the same accounts, for `penstock doctor`."""

from collections.abc import Iterable, Mapping

import redis

from shared.cells.account_changes import AccountCells
from shared.cells.accounts import differences


def account_faults(clients: Mapping[str, redis.Redis], away: Iterable[str]) -> list[str]:
    """Return a sentence for each cell that may lack a change of accounts, and for each account that differs.

    `away` has the names of cells that are not asked. Raises StoreUnavailable.
    """
    missed = AccountCells(clients).missed() & {*clients, *away}
    faults = [f"cell {name} has missed a change of accounts" for name in sorted(missed)]
    faults += differences(clients)
    # If no cell has all changes, only an operator can say which accounts hold.
    choice = " --from CELL" if missed >= clients.keys() else ""
    return [*faults, f"make the accounts equal with `penstock cells sync{choice}`"] if faults else []
