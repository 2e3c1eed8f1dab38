"""Compares each tenant's service with its fair share, from the snapshots that this process reads for scrapes."""

from collections.abc import Collection
from typing import Protocol

from shared.store.replies import Snapshot
from shared.views.shares import Shares


class GroupWeights(Protocol):
    """Reads the weights of groups; implemented by shared.accounts.groups.Groups."""

    def weights(self, groups: Collection[str]) -> dict[str, float]:
        """Return the weight of each group. Raises StoreUnavailable."""


class TenantShares:
    """Adds up the service received and due between scrapes."""

    def __init__(self, groups: GroupWeights) -> None:
        self._groups = groups
        self._shares = Shares()

    def ratios(self, snapshot: Snapshot) -> dict[str, float]:
        """Take in a snapshot with stats, and return served over due by tenant label. Raises StoreUnavailable.

        A tenant that was neither served nor had queued jobs in a pool in which somebody was served has no ratio.
        """
        named = {tenant.group for tenant in snapshot.tenants if tenant.group is not None}
        return self._shares.add(snapshot, self._groups.weights(named) if named else {}).ratios()
