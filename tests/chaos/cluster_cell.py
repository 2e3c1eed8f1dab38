"""A cell of a cluster in place of a primary and its replica: its slot moves between nodes, and nothing may be lost."""

from pathlib import Path
from typing import Self

import redis

from shared.store.connection import OPERATOR, open_client
from tests.chaos.stores import Loss
from tests.support.processes import wait_for
from tests.support.store_cluster import StoreCluster


class ClusterCell:
    """The store of a run: one cell of a cluster, which the product's processes reach without a proxy."""

    strict = False

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
    def primary(self) -> Self:
        """The cell, where a run expects the primary of a pair."""
        return self

    @property
    def proxy(self) -> Self:
        """The cell, where a run expects the proxy before a pair."""
        return self

    @property
    def environ(self) -> dict[str, str]:
        """The settings of the product's processes."""
        return {"REDIS_URL": self.url, "PENSTOCK_KEY_PREFIX": self.prefix}

    def heal(self) -> None:
        """Wait until all nodes answer."""
        for node in self.cluster.nodes:
            node.process.resume()
            wait_for(node.answers, "a node to answer", timeout_s=60)
