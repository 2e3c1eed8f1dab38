"""Several cells as the stores of a run, with their directory: each is a store of its own, or has a tag in a cluster."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Self

import redis

from shared.accounts.admin_actions import Actor
from shared.cells.directory import CellRecord, Directory
from shared.cells.edits import with_draining, with_placement, with_spread
from shared.cells.ids import DEFAULT_CELL
from shared.cells.stored import StoredDirectory, change
from shared.errors import ConfigError
from shared.store.connection import OPERATOR, open_client
from tests.chaos.cluster_faults import ClusterFaults
from tests.chaos.faults import Fault, Lane, disturb
from tests.chaos.stores import Loss, Repeated
from tests.support.processes import wait_for
from tests.support.store_cluster import StoreCluster
from tests.support.store_servers import StoreServer

#: The number of cells of each tenant that has more than one.
SPREADS = {"bob": 2, "cyd": 2}
#: How long a door may serve by the directory that it had before a change.
_OLD_DIRECTORY_S = 3.0
#: How long a door may think that a cell is away after it has come back.
_AWAY_AFTER_S = 1.0
_ACTOR = Actor("chaos", "a test")

Edit = Callable[[Directory, int], Directory]


class ChaosCells:
    """The cells of a run. A store of its own writes to its disk before each answer, so that a kill loses nothing."""

    strict = False
    lost_answers = 0
    #: So few places in each cell that jobs are spilled.
    settings: Mapping[str, str] = MappingProxyType({"PENSTOCK_MAX_INFLIGHT": "24"})

    def __init__(self, folder: Path, count: int, *, in_cluster: bool) -> None:
        self.losses: list[Loss] = []
        self.names = [DEFAULT_CELL, *(f"c{number}" for number in range(2, count + 1))]
        self.cluster = StoreCluster(folder / "cluster") if in_cluster else None
        self.servers = {
            name: StoreServer(folder / f"store-{name}", appendfsync="always")
            for name in self.names
            if self.cluster is None
        }
        self._records: dict[str, CellRecord] = {}
        self._clients: dict[str, redis.Redis] = {}
        self._stack = ExitStack()
        #: When the directory was changed, and from when to when a store was away or slow, in monotonic seconds.
        self._changes: list[float] = []
        self._disturbed: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        for part in (*self.servers.values(), *filter(None, [self.cluster])):
            self._stack.enter_context(part)
        self._records = {name: self._record(number, name) for number, name in enumerate(self.names)}
        for name, record in self._records.items():
            self._clients[name] = self._stack.enter_context(
                open_client(record.url, name="penstock-chaos", prefix=record.prefix, timeouts=OPERATOR)
            )
        # An old directory: doors look for repetitions in all cells only after a change.
        directory = Directory(1, self._records, changed_ms=1)
        for tenant, spread in SPREADS.items():
            directory = with_spread(directory, spread, tenant, at_ms=1)
        for client in self._clients.values():
            StoredDirectory(client).write_if_newer(directory)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _record(self, number: int, name: str) -> CellRecord:
        if self.cluster is None:
            return CellRecord(name, self.servers[name].url)
        place, node = divmod(number, len(self.cluster.nodes))
        return CellRecord(name, self.cluster.url, self.cluster.prefixes_on(self.cluster.nodes[node], place + 1)[place])

    @property
    def clients(self) -> Mapping[str, redis.Redis]:
        return self._clients

    def environ_of(self, cell: str) -> dict[str, str]:
        record = self._records[cell]
        return {"REDIS_URL": record.url, "PENSTOCK_KEY_PREFIX": record.prefix}

    @property
    def operator_environ(self) -> dict[str, str]:
        return self.environ_of(DEFAULT_CELL)

    def lanes(self) -> list[Lane]:
        """Return the faults of the stores, and the changes of the directory, which act at the same time."""
        store = (
            CellStoreFaults(self).lane()
            if self.cluster is None
            else ClusterFaults(self.cluster, [one.prefix for one in self._records.values()], self.disturbing).lane()
        )
        return [store, DirectoryChanges(self).lane()]

    def change(self, edit: Edit) -> bool:
        """Change the directory as `penstock cells` does. Return False if this change is not possible now."""

        def of_present(present: Directory | None, at_ms: int) -> Directory:
            assert present is not None
            return edit(present, at_ms)

        try:
            change(self._clients, of_present, actor=_ACTOR, what="cell.chaos", on="directory")
        except ConfigError:
            return False
        with self._lock:
            self._changes.append(time.monotonic())
        return True

    @contextmanager
    def disturbing(self, longer_s: float = 0.0) -> Iterator[None]:
        """Note that a store is disturbed during the block, and `longer_s` longer."""
        begin = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._disturbed.append((begin, time.monotonic() + longer_s))

    def may_run_twice(self, repeated: Repeated) -> bool:
        """Return whether a request may have been admitted in two cells, as docs/scale.md says.

        With a key, that is so if its tenant may have been moved, and the cell with the first job was away when it was
        looked for; without one, if its home was away, which may then end the job before the door can cancel it.
        """
        with self._lock:
            has_moved = any(repeated.begin - _OLD_DIRECTORY_S <= at <= repeated.end for at in self._changes)
            was_away = any(
                since <= repeated.end and until >= repeated.again - _AWAY_AFTER_S for since, until in self._disturbed
            )
        return was_away and (has_moved or not repeated.has_key)

    def heal(self) -> None:
        """Let all stores answer and all cells serve; wait until all copies of the directory are equal again."""
        for server in self.servers.values():
            server.process.resume()
            wait_for(server.answers, "a store to answer", timeout_s=60)
        if self.cluster is not None:
            self.cluster.heal()
        for name in self.names[1:]:
            self.change(lambda found, at_ms, name=name: with_draining(found, name, at_ms=at_ms, draining=False))  # type: ignore[misc]
        stored = [StoredDirectory(client) for client in self._clients.values()]
        wait_for(lambda: len({one.stamp() for one in stored}) == 1, "equal copies of the directory", timeout_s=60)


class CellStoreFaults:
    """Kills, stops, restarts and pauses the stores of cells that have their own, one at a time."""

    def __init__(self, cells: ChaosCells) -> None:
        self._cells = cells

    def lane(self) -> Lane:
        faults: dict[Fault, int] = {
            self.kill_store: 3,
            self.stop_store: 2,
            self.terminate_store: 1,
            self.pause_store: 2,
            self.kill_connections: 2,
            self.flush_scripts: 1,
        }
        return Lane("store", faults, (0.3, 1.5))

    def kill_store(self, rng: random.Random) -> None:
        server = self._any(rng)
        with self._cells.disturbing():
            server.process.kill()
            time.sleep(rng.uniform(0.0, 2.0))
            server.start()

    def terminate_store(self, rng: random.Random) -> None:
        server = self._any(rng)
        with self._cells.disturbing():
            server.process.terminate()
            server.process.exit_code(timeout_s=30)
            time.sleep(rng.uniform(0.0, 1.0))
            server.start()

    def stop_store(self, rng: random.Random) -> None:
        server = self._any(rng)
        with self._cells.disturbing():
            server.process.pause()
            try:
                time.sleep(rng.uniform(0.2, 2.0))
            finally:
                server.process.resume()

    def pause_store(self, rng: random.Random) -> None:
        paused_ms = rng.randint(100, 1_600)
        with self._cells.disturbing(paused_ms / 1000):
            disturb(self._any(rng).client, "CLIENT", "PAUSE", paused_ms, rng.choice(["ALL", "WRITE"]))

    def kill_connections(self, rng: random.Random) -> None:
        """Kill all clients' connections with a store every 100 ms for up to a second."""
        server = self._any(rng)
        with self._cells.disturbing():
            for _ in range(rng.randint(1, 10)):
                disturb(server.client, "CLIENT", "KILL", "TYPE", "normal")
                time.sleep(0.1)

    def flush_scripts(self, rng: random.Random) -> None:
        disturb(self._any(rng).client, "SCRIPT", "FLUSH", rng.choice(["SYNC", "ASYNC"]))

    def _any(self, rng: random.Random) -> StoreServer:
        return rng.choice(list(self._cells.servers.values()))


class DirectoryChanges:
    """Moves tenants, and drains cells and takes them back."""

    def __init__(self, cells: ChaosCells) -> None:
        self._cells = cells

    def lane(self) -> Lane:
        faults: dict[Fault, int] = {self.move_tenant: 4, self.leave_place_to_hashing: 1, self.drain_cell: 2}
        return Lane("directory", faults, (0.3, 2.0))

    def move_tenant(self, rng: random.Random) -> bool:
        """Pin a tenant to one or two random cells."""
        tenant = rng.choice(["ann", *SPREADS])
        count = min(SPREADS.get(tenant, 1), len(self._cells.names))
        places = rng.sample(self._cells.names, count)
        return self._cells.change(lambda found, at_ms: with_placement(found, tenant, places, at_ms=at_ms))

    def leave_place_to_hashing(self, rng: random.Random) -> bool:
        tenant = rng.choice(["ann", *SPREADS])

        def unpin(found: Directory, at_ms: int) -> Directory:
            return with_spread(
                with_placement(found, tenant, (), at_ms=at_ms), SPREADS.get(tenant, 1), tenant, at_ms=at_ms
            )

        return self._cells.change(unpin)

    def drain_cell(self, rng: random.Random) -> bool:
        """Drain a cell, and take it back up to three seconds later."""
        name = rng.choice(self._cells.names)

        def set_draining(*, draining: bool) -> bool:
            return self._cells.change(lambda found, at_ms: with_draining(found, name, at_ms=at_ms, draining=draining))

        if not set_draining(draining=True):
            return False
        time.sleep(rng.uniform(0.5, 3.0))
        return set_draining(draining=False)
