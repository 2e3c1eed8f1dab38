"""A cell of a cluster in place of a primary and its replica: its slot moves between nodes, and nothing may be lost."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import redis

from shared.cells.ids import DEFAULT_CELL
from shared.store.connection import OPERATOR, open_client
from tests.chaos.stores import Loss, Repeated
from tests.support.store_cluster import StoreCluster


class ClusterCell:
    """The store of a run: one cell of a cluster, which the product's processes reach without a proxy."""

    strict = False
    settings: Mapping[str, str] = MappingProxyType({})

    def __init__(self, folder: Path) -> None:
        self.cluster = StoreCluster(folder / "cluster")
        #: No node is killed, so no acknowledged write may be lost.
        self.losses: list[Loss] = []
        self.lost_answers = 0

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        self.url = self.cluster.url
        self.prefix = self.cluster.prefix_on(self.cluster.nodes[0])
        self.client: redis.Redis = open_client(self.url, name="penstock-chaos", prefix=self.prefix, timeouts=OPERATOR)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.cluster.__exit__()

    @property
    def clients(self) -> Mapping[str, redis.Redis]:
        return {DEFAULT_CELL: self.client}

    def environ_of(self, _cell: str) -> dict[str, str]:
        return {"REDIS_URL": self.url, "PENSTOCK_KEY_PREFIX": self.prefix}

    @property
    def operator_environ(self) -> dict[str, str]:
        return self.environ_of(DEFAULT_CELL)

    def may_run_twice(self, _: Repeated) -> bool:
        return False

    def heal(self) -> None:
        """Wait until all nodes answer."""
        self.cluster.heal()
