"""Store servers on loopback ports, which a test can make replicas of each other, kill, stop and promote."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import redis

from shared.errors import StoreUnavailable
from shared.store.connection import OPERATOR, open_client
from shared.store.embedded import server_binary
from shared.store.redis_errors import store_faults
from tests.support.ports import free_port
from tests.support.processes import Process, wait_for


class StoreServer:
    """One server with an append-only file in a folder of its own; the folder and the port outlive its process."""

    def __init__(self, folder: Path, *, appendfsync: str = "everysec") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._appendfsync = folder, appendfsync
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.client = open_client(self.url, name="penstock-test", timeouts=OPERATOR)
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self._process is not None:
            self._process.end()

    @property
    def process(self) -> Process:
        assert self._process is not None, "the server was not started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def start(self, *, replica_of: int | None = None, wait: bool = True) -> None:
        """Start the server's process on its folder, as a replica of the server on a port if one is named.

        With `wait`, wait until the server answers.
        """
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "save": "",
            "maxmemory-policy": "noeviction",
            # A replica that connects gets its copy at once: the primary does not wait for others to share it.
            "repl-diskless-sync-delay": "0",
        }
        if replica_of is not None:
            options["replicaof"] = f"127.0.0.1 {replica_of}"
        words = [word for name, value in options.items() for word in (f"--{name}", *value.split(" "))]
        self._process = Process([str(server_binary()), *words], {}, self._folder / "server.log")
        if wait:
            wait_for(lambda: self.answers() or not self.alive, "a store server that answers")
            assert self.alive, self._process.log.read_text(errors="replace")

    def answers(self) -> bool:
        """Return whether the server is running and has read its data."""
        try:
            with store_faults(self.client):
                return bool(self.client.ping())
        except StoreUnavailable:
            return False

    def follow(self, port: int) -> None:
        """Make this server a replica of the server on this port, and wait until it has a copy of all data."""
        self.client.replicaof("127.0.0.1", port)
        wait_for(lambda: self.is_in_sync, "the replica to have a copy")

    @property
    def is_in_sync(self) -> bool:
        """Whether this server is a replica that is connected to its primary and has received all of its data.

        Raises StoreUnavailable.
        """
        with store_faults(self.client):
            replication = self.client.info("replication")
        return bool(replication["role"] == "slave" and replication["master_link_status"] == "up")

    def promote(self) -> None:
        """Make this replica a primary."""
        self.client.replicaof("NO", "ONE")

    def wait_until_replicas_are_listed(self, count: int) -> None:
        """Wait until the server counts `count` replicas that receive its writes."""
        wait_for(lambda: self._online_replicas() == count, f"{count} replicas")

    def _online_replicas(self) -> int:
        with store_faults(self.client):
            info = self.client.info("replication")
        replicas = [info.get(f"slave{i}", {}) for i in range(int(info["connected_slaves"]))]
        return sum(isinstance(one, dict) and one.get("state") == "online" for one in replicas)


@contextmanager
def sentinel_of(primary: StoreServer, replica: StoreServer, folder: Path) -> Iterator[str]:
    """Run a Sentinel that promotes the replica a second after it has lost the primary. Yield its URL."""
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor main 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 2000\n"
    )
    process = Process([str(server_binary()), str(config), "--sentinel"], {}, folder / "sentinel.log")
    try:
        with open_client(f"redis://127.0.0.1:{port}", name="penstock-test", prefix="") as client:
            replica.follow(primary.port)
            wait_for(lambda: _knows_replica(client), "the Sentinel to find the replica")
            yield f"redis+sentinel://127.0.0.1:{port}/main"
    finally:
        process.end()


def _knows_replica(client: redis.Redis) -> bool:
    """Return whether the Sentinel answers and knows one replica."""
    try:
        master: Any = client.sentinel_master("main")
    except redis.RedisError:
        return False
    return bool(master["num-slaves"] == 1)


def commands_run(client: redis.Redis, name: str) -> int:
    """Return how often the server has run a command since it started."""
    return int(client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))
