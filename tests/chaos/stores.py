"""A primary and its replica behind the proxy: restarts and failovers, and which writes each of them may have lost."""

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import redis

from shared.cells.ids import DEFAULT_CELL
from shared.errors import StoreUnavailable
from shared.store.redis_errors import store_faults
from tests.chaos.proxy import StoreProxy
from tests.support.processes import wait_for
from tests.support.store_servers import StoreServer

#: With appendfsync everysec, the server postpones a write to its file for up to two seconds while the disk is busy
#: with an fsync (aof.c, flushAppendOnlyFile). A kill loses what it has postponed.
_POSTPONED_WRITES_S = 2.5
#: How often the offsets of the replication stream are read, to know what a replica lacks at a failover.
_SAMPLE_S = 0.1


@dataclass(frozen=True)
class Loss:
    """A fault after which the store may lack what it acknowledged from `since` to `at`, in monotonic seconds."""

    fault: str
    since: float
    at: float
    #: Whether ids that clients got in this time are safe anyway, because a replica had confirmed them.
    acknowledged_jobs_are_safe: bool

    def covers(self, begin: float, end: float) -> bool:
        """Return whether something that happened between two times can be lost."""
        return begin <= self.at and end >= self.since

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Repeated:
    """A request that has two jobs: when it was sent first, and from when to when it may have got the second one."""

    begin: float
    again: float
    end: float
    #: Whether it had an Idempotency-Key.
    has_key: bool


class RunStores(Protocol):
    """The stores of a run, whatever they are: one cell or several."""

    #: The times for which the stores may lack what they acknowledged.
    losses: list[Loss]

    @property
    def lost_answers(self) -> int:
        """How many answers of the store a proxy has lost."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the product's processes that go with these stores."""
        ...

    @property
    def clients(self) -> Mapping[str, redis.Redis]:
        """A client of each cell by its name, which reaches the store whatever a fault does to the network."""
        ...

    def environ_of(self, cell: str) -> dict[str, str]:
        """Return the settings of the product's processes that name a cell's store."""
        ...

    @property
    def operator_environ(self) -> dict[str, str]:
        """The settings of an operator's commands that name the store, which no fault of the network disturbs."""
        ...

    def may_run_twice(self, repeated: Repeated) -> bool:
        """Return whether a request may have been admitted twice."""
        ...

    def heal(self) -> None:
        """Wait until all stores answer."""
        ...


class StorePair:
    """Two servers that change roles. `strict`: fsync before each answer, and ids only after the replica's answer."""

    def __init__(self, folder: Path, *, strict: bool) -> None:
        self.strict = strict
        fsync = "always" if strict else "everysec"
        self.primary = StoreServer(folder / "store-a", appendfsync=fsync)
        self.replica = StoreServer(folder / "store-b", appendfsync=fsync)
        self.losses: list[Loss] = []
        #: The address of the store for the product's processes, and the primary's address for the replica.
        self.proxy, self.link = StoreProxy(self.primary.port), StoreProxy(self.primary.port)
        #: Held while a server is killed, restarted or promoted.
        self.changing = threading.RLock()
        self._samples: list[tuple[float, int]] = []
        self._closing = threading.Event()
        self._sampler = threading.Thread(target=self._sample_offsets, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        for part in (self.primary, self.replica, self.proxy, self.link):
            part.__enter__()
        self.replica.follow(self.link.port)
        self.primary.wait_until_replicas_are_listed(1)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._sampler.join(5)
        for part in (self.link, self.proxy, self.replica, self.primary):
            part.__exit__()

    @property
    def settings(self) -> Mapping[str, str]:
        # Workers read the setting too, and only doors and the gate wait.
        return {"PENSTOCK_ACK_REPLICAS": "1"} if self.strict else {}

    @property
    def clients(self) -> Mapping[str, redis.Redis]:
        return {DEFAULT_CELL: self.primary.client}

    def environ_of(self, _cell: str) -> dict[str, str]:
        return {"REDIS_URL": self.proxy.url}

    @property
    def operator_environ(self) -> dict[str, str]:
        return {"REDIS_URL": self.primary.url}

    def may_run_twice(self, _: Repeated) -> bool:
        return False

    @property
    def lost_answers(self) -> int:
        return self.proxy.lost_answers

    def restart(self, *, kill: bool, down_s: float) -> None:
        """Kill the primary, or end it in order, and start it again after `down_s`."""
        with self.changing:
            at = time.monotonic()
            if kill:
                self.primary.process.kill()
                if not self.strict:
                    self.losses.append(Loss("restart", at - _POSTPONED_WRITES_S, at, acknowledged_jobs_are_safe=False))
            else:
                self.primary.process.terminate()
                self.primary.process.exit_code(timeout_s=30)
            time.sleep(down_s)
            self.primary.start()

    def fail_over(self, *, lag_s: float, rejoin_s: float) -> bool:
        """Kill the primary, promote the replica, and let the old primary follow it.

        With `lag_s`, the replica receives nothing for this long before. Return False, having done nothing, if the
        replica has no complete copy at the moment.
        """
        with self.changing:
            if not (self.replica.alive and self.replica.answers() and self.replica.is_in_sync):
                return False
            if lag_s:
                self.link.hold(held=True)
                time.sleep(lag_s)
            at = time.monotonic()
            self.primary.process.kill()
            self.link.cut()
            self.proxy.cut()
            wait_for(lambda: not self.replica.is_in_sync, "the replica to lose its primary")
            offset = int(self.replica.client.info("replication")["slave_repl_offset"])
            self.replica.promote()
            self.losses.append(Loss("failover", self._complete_until(offset, at), at, self.strict))
            self.primary, self.replica = self.replica, self.primary
            self.proxy.point_at(self.primary.port)
            self.link.hold(held=False)
            self.link.point_at(self.primary.port)
            self._samples.clear()
            time.sleep(rejoin_s)
            self.replica.start(replica_of=self.link.port, wait=False)
            return True

    def heal(self) -> None:
        """Wait until both servers run and the replica has a complete copy."""
        with self.changing:
            for server in (self.primary, self.replica):
                server.process.resume()
            wait_for(self.primary.answers, "the primary to answer", timeout_s=60)
            wait_for(lambda: self.replica.answers() and self.replica.is_in_sync, "the replica's copy", timeout_s=60)

    def _complete_until(self, offset: int, at: float) -> float:
        """Return the latest time at which the replica is known to have had all earlier writes."""
        return max((t for t, written in self._samples if written <= offset), default=at - 60.0)

    def _sample_offsets(self) -> None:
        while not self._closing.wait(_SAMPLE_S):
            began, primary = time.monotonic(), self.primary
            try:
                with store_faults(primary.client):
                    offset = int(primary.client.info("replication")["master_repl_offset"])
            except (StoreUnavailable, KeyError):
                continue
            if primary is self.primary:
                self._samples = [*self._samples[-600:], (began, offset)]
