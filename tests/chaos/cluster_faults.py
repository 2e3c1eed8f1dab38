"""The faults of a cluster: the slots of cells move, and the nodes that own them are disturbed."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from tests.chaos.faults import Fault, Lane, disturb
from tests.support.store_cluster import Node, StoreCluster


class ClusterFaults:
    """Moves the slot of one of the cells, and disturbs the node that owns it."""

    def __init__(
        self,
        cluster: StoreCluster,
        prefixes: Sequence[str],
        disturbing: Callable[[float], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        """`disturbing(longer_s)` notes that a store is disturbed during a block, and so much longer."""
        self._cluster, self._prefixes, self._disturbing = cluster, prefixes, disturbing

    def lane(self) -> Lane:
        faults: dict[Fault, int] = {
            self.move_slot: 6,
            self.flush_scripts: 1,
            self.kill_connections: 2,
            self.pause: 1,
            self.stop_owner: 1,
        }
        return Lane("store", faults, (0.3, 1.5))

    def move_slot(self, rng: random.Random) -> None:
        prefix = rng.choice(self._prefixes)
        owner = self._cluster.owner(prefix)
        with self._disturbing(1.0):
            self._cluster.move(prefix, rng.choice([node for node in self._cluster.nodes if node is not owner]))

    def flush_scripts(self, rng: random.Random) -> None:
        for node in self._cluster.nodes:
            disturb(node.client, "SCRIPT", "FLUSH", rng.choice(["SYNC", "ASYNC"]))

    def kill_connections(self, rng: random.Random) -> None:
        """Kill the clients' connections with the owner every 100 ms for up to a second."""
        owner = self._owner(rng)
        with self._disturbing(0.0):
            for _ in range(rng.randint(1, 10)):
                disturb(owner.client, "CLIENT", "KILL", "TYPE", "normal")
                time.sleep(0.1)

    def pause(self, rng: random.Random) -> None:
        paused_ms = rng.randint(100, 1_600)
        with self._disturbing(paused_ms / 1000):
            disturb(self._owner(rng).client, "CLIENT", "PAUSE", paused_ms, rng.choice(["ALL", "WRITE"]))

    def stop_owner(self, rng: random.Random) -> None:
        owner = self._owner(rng)
        with self._disturbing(0.0):
            owner.process.pause()
            try:
                time.sleep(rng.uniform(0.2, 2.0))
            finally:
                owner.process.resume()

    def _owner(self, rng: random.Random) -> Node:
        return self._cluster.owner(rng.choice(self._prefixes))
