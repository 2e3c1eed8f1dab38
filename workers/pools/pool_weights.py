"""Weights the pools of a worker by the tenants that wait for them."""

from collections.abc import Mapping

from shared.store.keys import model_slug
from shared.store.store import Store
from workers.duties.slot_shares import PoolShare

#: How often the tenants are read, in seconds, and the most of them.
_INTERVAL_S, _MOST_TENANTS = 2.0, 64


class PoolWeights:
    """Sets the weights of the pools that share an engine. One that nobody waits for keeps its weight."""

    name = "pool_weights"

    def __init__(self, store: Store, shares: Mapping[str, PoolShare]) -> None:
        """`shares` has the pools' parts by the names of their models."""
        self._store, self._shares = store, {model_slug(name): share for name, share in shares.items()}

    def one_pass(self) -> float:
        """Read the tenants that wait. Return the delay until the next pass in seconds. Raises StoreUnavailable."""
        if sum(share.held > 0 or share.may_wait() for share in self._shares.values()) > 1:
            tenants = self._store.snapshot(tenants=_MOST_TENANTS, workers=1).tenants
            for slug, share in self._shares.items():
                weight = sum(tenant.weight for tenant in tenants if slug in tenant.queues)
                share.weight = weight or share.weight
        return _INTERVAL_S
