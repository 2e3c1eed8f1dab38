"""The faults of a cluster: the slot of a cell moves, and the node that owns it is disturbed."""

import random
import time
from typing import Any

from shared.store.redis_errors import store_faults
from tests.chaos.cluster_cell import ClusterCell
from tests.chaos.faults import Fault, Lane
from tests.support.store_cluster import Node


class ClusterFaults:
    """Moves the cell's slot, and disturbs the node that owns it."""

    def __init__(self, cell: ClusterCell) -> None:
        self._cell = cell

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
        others = [node for node in self._cell.cluster.nodes if node is not self._owner]
        self._cell.cluster.move(self._cell.prefix, rng.choice(others))

    def flush_scripts(self, rng: random.Random) -> None:
        for node in self._cell.cluster.nodes:
            self._send(node, "SCRIPT", "FLUSH", rng.choice(["SYNC", "ASYNC"]))

    def kill_connections(self, rng: random.Random) -> None:
        """Kill the clients' connections with the owner every 100 ms for up to a second."""
        for _ in range(rng.randint(1, 10)):
            self._send(self._owner, "CLIENT", "KILL", "TYPE", "normal")
            time.sleep(0.1)

    def pause(self, rng: random.Random) -> None:
        self._send(self._owner, "CLIENT", "PAUSE", rng.randint(100, 1_600), rng.choice(["ALL", "WRITE"]))

    def stop_owner(self, rng: random.Random) -> None:
        owner = self._owner
        owner.process.pause()
        try:
            time.sleep(rng.uniform(0.2, 2.0))
        finally:
            owner.process.resume()

    @property
    def _owner(self) -> Node:
        return self._cell.cluster.owner(self._cell.prefix)

    @staticmethod
    def _send(node: Node, *words: str | int) -> Any:
        with store_faults(node.client):
            return node.client.execute_command(*words)  # type: ignore[no-untyped-call]  # has no types
