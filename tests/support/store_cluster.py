"""A cluster of store servers on loopback ports, which a test can end and between which it can move slots."""

from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Self

import redis

from shared.store.clients.hash_slots import slot_of
from shared.store.connection import OPERATOR, open_client
from shared.store.embedded import server_binary
from tests.support.ports import free_port
from tests.support.processes import Process, wait_for

_SLOTS = 16_384


class Node:
    """One server of the cluster."""

    def __init__(self, folder: Path, node_timeout_ms: int) -> None:
        folder.mkdir(parents=True)
        self._folder, self._node_timeout_ms = folder, node_timeout_ms
        self.id = ""
        self._start()

    def _start(self) -> None:
        """Start the server on two ports that are free now."""
        self.port, self.bus_port = free_port(), free_port()
        self.client = open_client(f"redis://127.0.0.1:{self.port}", name="penstock-test", timeouts=OPERATOR)
        options = {
            "port": self.port,
            "cluster-port": self.bus_port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "cluster-enabled": "yes",
            "cluster-node-timeout": self._node_timeout_ms,
            "cluster-require-full-coverage": "no",
            # A replica may be promoted whatever its link to the lost primary was like.
            "cluster-replica-validity-factor": 0,
            "appendonly": "yes",
            "save": "",
            "repl-diskless-sync-delay": 0,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.process = Process([str(server_binary()), *words], {}, self._folder / f"server-{self.port}.log")

    def wait_until_it_answers(self) -> None:
        """Wait until the server answers. If another program has taken a port meanwhile, start it on other ports."""
        for _ in range(5):
            wait_for(lambda: self.answers() or not self.process.alive, "a node that answers or ends")
            log = self.process.log.read_text(errors="replace")
            if self.process.alive:
                return
            assert "already in use" in log, log
            self.close()
            self._start()
        raise AssertionError("no free ports")

    def ask(self, *words: str | int) -> Any:
        return self.client.execute_command("CLUSTER", *words)  # type: ignore[no-untyped-call]  # has no types

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def is_ok(self, nodes: int) -> bool:
        """Return whether this server knows all nodes, by their number, and an owner of each slot."""
        info = self.ask("INFO")
        info = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
        return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(nodes)

    def close(self) -> None:
        self.client.close()
        self.process.end()


class StoreCluster:
    """Three primaries with a third of the slots each, and replicas of the first of them if wanted.

    A node counts as failed if others hear nothing of it for `node_timeout_ms`.
    """

    def __init__(self, folder: Path, *, replicas: int = 0, node_timeout_ms: int = 30_000) -> None:
        self._stack = ExitStack()
        self.nodes: list[Node] = []
        for number in range(3 + replicas):
            self.nodes.append(Node(folder / str(number), node_timeout_ms))
            self._stack.callback(self.nodes[-1].close)

    def __enter__(self) -> Self:
        try:
            self._join()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _join(self) -> None:
        for node in self.nodes:
            node.wait_until_it_answers()
            node.id = str(node.ask("MYID").decode())
        first, *others = self.nodes
        third = _SLOTS // 3 + 1
        for number, node in enumerate(self.nodes[:3]):
            node.ask("ADDSLOTSRANGE", number * third, min((number + 1) * third, _SLOTS) - 1)
            node.ask("SET-CONFIG-EPOCH", number + 1)
        for node in others:
            first.ask("MEET", "127.0.0.1", node.port, node.bus_port)
        wait_for(lambda: all(node.is_ok(len(self.nodes)) for node in self.nodes), "the nodes to know each other")
        for replica in self.nodes[3:]:
            replica.ask("REPLICATE", first.id)
            wait_for(lambda one=replica: one.client.info("replication")["master_link_status"] == "up", "a replica")  # type: ignore[misc]

    def heal(self) -> None:
        """Let all nodes that are stopped continue, and wait until they answer."""
        for node in self.nodes:
            node.process.resume()
            wait_for(node.answers, "a node to answer", timeout_s=60)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def owner(self, prefix: str) -> Node:
        """Return the node that owns the slot of a cell, as it says itself."""
        slot = slot_of(prefix)
        for node in self.nodes:
            if node.process.alive and slot in _own_slots(node):
                return node
        raise AssertionError(f"no node owns slot {slot}")

    def prefix_on(self, node: Node) -> str:
        """Return the prefix of a cell whose slot is on this node."""
        return self.prefixes_on(node, 1)[0]

    def prefixes_on(self, node: Node, count: int) -> list[str]:
        """Return the prefixes of cells whose slots are on this node."""
        own = _own_slots(node)
        return list(
            islice((prefix for prefix in map("{{c{}}}:".format, range(10_000)) if slot_of(prefix) in own), count)
        )

    def move(self, prefix: str, to: Node) -> None:
        """Move the slot of a cell to a node by atomic slot migration, and wait until both nodes know it."""
        slot, source = slot_of(prefix), self.owner(prefix)
        source.ask("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.id)
        wait_for(lambda: slot in _own_slots(to) and slot not in _own_slots(source), "the slot to move")


def _own_slots(node: Node) -> set[int]:
    own = next(line for line in node.ask("NODES").decode().splitlines() if "myself" in line).split()
    if "slave" in own[2] or "replica" in own[2]:
        return set()
    found: set[int] = set()
    for word in own[8:]:
        first, _, last = word.partition("-")
        if not word.startswith("["):
            found |= set(range(int(first), int(last or first) + 1))
    return found
