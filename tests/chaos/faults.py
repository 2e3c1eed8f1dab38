"""The faults of a run, in two lanes: one for the processes and one for the store, each a seeded sequence."""

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import redis

from shared.errors import StoreUnavailable
from shared.store.redis_errors import store_faults
from tests.chaos.stores import StorePair
from tests.chaos.system import SETTINGS, Member, System

_LEASE_S = int(SETTINGS["PENSTOCK_LEASE_MS"]) / 1000

#: A fault returns False if it could do nothing at the moment.
Fault = Callable[[random.Random], bool | None]


@dataclass(frozen=True)
class Lane:
    """Faults with their weights, and the shortest and the longest pause between two of them, in seconds."""

    name: str
    faults: dict[Fault, int]
    pause_s: tuple[float, float]


class Faults:
    """Runs both lanes in threads of their own until it is stopped."""

    def __init__(self, lanes: list[Lane], seed: str) -> None:
        self.counts: Counter[str] = Counter()
        #: The failures of the faults themselves, which are defects of the run or of the store's servers.
        self.failures: list[str] = []
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(lane, random.Random(f"{seed}/{lane.name}")), name=lane.name)
            for lane in lanes
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the faults that are acting end, and start no more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.failures.append(f"{thread.name} did not stop")

    def _run(self, lane: Lane, rng: random.Random) -> None:
        faults, weights = list(lane.faults), list(lane.faults.values())
        while not self._stopped.wait(rng.uniform(*lane.pause_s)):
            (fault,) = rng.choices(faults, weights)
            try:
                acted = fault(rng)
            except (StoreUnavailable, psutil.Error):
                continue  # another fault was faster: the store or the process is away
            except Exception as error:  # noqa: BLE001 - whatever it is, the report shows it
                self.failures.append(f"{fault.__name__}: {error!r}")
            else:
                self.counts[fault.__name__] += acted is not False


class ProcessFaults:
    """Kills, stops and ends the product's processes."""

    def __init__(self, system: System) -> None:
        self._system = system

    def lane(self) -> Lane:
        faults: dict[Fault, int] = {
            self.kill_worker: 3,
            self.stop_worker_past_its_lease: 8,
            self.stop_worker_shortly: 1,
            self.terminate_worker: 1,
            self.kill_door: 1,
            self.kill_door_child: 1,
            self.stop_door: 1,
            self.terminate_door: 1,
            self.kill_gate: 1,
            self.terminate_gate: 1,
        }
        return Lane("processes", faults, (0.1, 0.8))

    def kill_worker(self, rng: random.Random) -> None:
        self._kill(rng, "worker")

    def kill_door(self, rng: random.Random) -> None:
        self._kill(rng, "door")

    def kill_gate(self, rng: random.Random) -> None:
        self._kill(rng, "gate")

    def kill_door_child(self, rng: random.Random) -> None:
        """Kill one process of the door, which the door's first process replaces."""
        member = rng.choice(self._system.of_kind("door"))
        with member.lock:
            for child in member.tree()[1:]:
                child.kill()

    def stop_worker_past_its_lease(self, rng: random.Random) -> None:
        self._stop(rng, "worker", _LEASE_S + rng.uniform(0.2, 1.2))

    def stop_worker_shortly(self, rng: random.Random) -> None:
        self._stop(rng, "worker", rng.uniform(0.1, 1.0))

    def stop_door(self, rng: random.Random) -> None:
        self._stop(rng, "door", rng.uniform(0.3, 2.5))

    def terminate_worker(self, rng: random.Random) -> None:
        self._terminate(rng, "worker")

    def terminate_door(self, rng: random.Random) -> None:
        self._terminate(rng, "door")

    def terminate_gate(self, rng: random.Random) -> None:
        self._terminate(rng, "gate")

    def _kill(self, rng: random.Random, kind: str) -> None:
        member = rng.choice(self._system.of_kind(kind))
        with member.lock:
            member.is_ending = True
            tree = member.tree()
            member.signal_all(signal.SIGKILL)
            member.process.kill()
            psutil.wait_procs(tree, timeout=10)  # its port is free only when its children are dead too
            time.sleep(rng.uniform(0.0, 0.5))

    def _stop(self, rng: random.Random, kind: str, stopped_s: float) -> None:
        member = rng.choice(self._system.of_kind(kind))
        with member.lock:
            member.signal_all(signal.SIGSTOP)
            time.sleep(stopped_s)
            member.signal_all(signal.SIGCONT)

    def _terminate(self, rng: random.Random, kind: str) -> None:
        member: Member = rng.choice(self._system.of_kind(kind))
        with member.lock:
            member.is_ending = True
            member.process.terminate()


class StoreFaults:
    """Pauses, restarts and replaces the store, and breaks what leads to it."""

    def __init__(self, pair: StorePair, *, failovers: bool = True) -> None:
        self._pair, self._failovers = pair, failovers

    def lane(self) -> Lane:
        faults: dict[Fault, int] = {
            self.pause: 2,
            self.flush_scripts: 1,
            self.kill_connections: 2,
            self.kill_and_restart: 2,
            self.terminate_and_restart: 1,
            self.fail_over: 2 * self._failovers,
            self.fail_over_to_a_lagging_replica: 1 * self._failovers,
            self.cut_connections: 1,
            self.hold_connections: 2,
            self.delay_connections: 1,
            self.lose_answers: 4,
            self.stop_replica: 2,
        }
        return Lane("store", faults, (0.3, 1.5))

    def pause(self, rng: random.Random) -> None:
        self._send("CLIENT", "PAUSE", rng.randint(100, 1_600), rng.choice(["ALL", "WRITE"]))

    def flush_scripts(self, rng: random.Random) -> None:
        self._send("SCRIPT", "FLUSH", rng.choice(["SYNC", "ASYNC"]))

    def kill_connections(self, rng: random.Random) -> None:
        """Kill all clients' connections every 100 ms for up to a second."""
        for _ in range(rng.randint(1, 10)):
            self._send("CLIENT", "KILL", "TYPE", "normal")
            time.sleep(0.1)

    def kill_and_restart(self, rng: random.Random) -> None:
        self._pair.restart(kill=True, down_s=rng.uniform(0.0, 1.0))

    def terminate_and_restart(self, rng: random.Random) -> None:
        self._pair.restart(kill=False, down_s=rng.uniform(0.0, 1.0))

    def fail_over(self, rng: random.Random) -> bool:
        return self._pair.fail_over(lag_s=0.0, rejoin_s=rng.uniform(0.0, 0.5))

    def fail_over_to_a_lagging_replica(self, rng: random.Random) -> bool:
        return self._pair.fail_over(lag_s=rng.uniform(0.1, 1.0), rejoin_s=rng.uniform(0.0, 0.5))

    def cut_connections(self, rng: random.Random) -> None:
        self._pair.proxy.cut()

    def hold_connections(self, rng: random.Random) -> None:
        """Forward nothing for a while; then deliver what was held, or close the connections in its place."""
        with self._restored(lambda: self._pair.proxy.hold(held=False)):
            self._pair.proxy.hold(held=True)
            time.sleep(rng.uniform(0.2, 2.0))
            if rng.random() < 0.5:
                self._pair.proxy.cut()

    def delay_connections(self, rng: random.Random) -> None:
        with self._restored(lambda: self._pair.proxy.delay(0.0)):
            self._pair.proxy.delay(rng.uniform(0.02, 0.2))
            time.sleep(rng.uniform(0.5, 2.0))

    def lose_answers(self, rng: random.Random) -> None:
        with self._restored(lambda: self._pair.proxy.lose_answers(lost=False)):
            self._pair.proxy.lose_answers(lost=True)
            time.sleep(rng.uniform(0.02, 0.4))

    def stop_replica(self, rng: random.Random) -> None:
        """Stop the replica: with PENSTOCK_ACK_REPLICAS, no job may be acknowledged meanwhile."""
        replica = self._pair.replica
        with self._restored(replica.process.resume):
            replica.process.pause()
            time.sleep(rng.uniform(0.3, 1.5))

    @contextlib.contextmanager
    def _restored(self, restore: Callable[[], Any]) -> Any:
        try:
            yield
        finally:
            restore()

    def _send(self, *words: str | int) -> None:
        disturb(self._pair.primary.client, *words)


def disturb(client: redis.Redis, *words: str | int) -> None:
    """Send a command that disturbs a store. Raises StoreUnavailable if another fault was faster."""
    with store_faults(client):
        client.execute_command(*words)  # type: ignore[no-untyped-call]  # has no types
