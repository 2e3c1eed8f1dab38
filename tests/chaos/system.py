"""The product's processes of one run: doors, a gate and workers, which are started again whenever one ends."""

import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from shared.accounts.api_keys import ApiKeys
from shared.accounts.tenants import TenantPolicy, Tenants
from shared.cells.accounts import copy_accounts
from shared.errors import StoreUnavailable
from shared.settings.settings import load
from shared.store.store import Store
from tests.chaos.stores import RunStores
from tests.chaos.usage import BUDGET
from tests.support.ports import free_port
from tests.support.processes import Process, wait_for
from workers.demo import demo_model_path

TENANTS = ("ann", "bob", "cyd")
WORKERS, DOORS = 3, 2
#: Tenants with weights, whose shares are compared after the faults. No client uses them.
WEIGHTED = {"heavy": 3, "light": 1}
#: How often the processes are looked after.
_WATCH_S = 0.1

SETTINGS = {
    "PENSTOCK_AUTH": "required",
    "PENSTOCK_WEB_WORKERS": "1",
    "PENSTOCK_LOG_FORMAT": "json",
    # A lease that a short stop outlives, and attempts enough that no job fails because many workers were stopped.
    "PENSTOCK_LEASE_MS": "1500",
    "PENSTOCK_MAX_ATTEMPTS": "20",
    "PENSTOCK_DRAIN_GRACE_MS": "2000",
    # Few places, so that clients are refused too.
    "PENSTOCK_MAX_INFLIGHT": "48",
    "PENSTOCK_MAX_QUEUE_SIZE": "12",
    # Jobs are paused often, and for less long than most of them take.
    "PENSTOCK_PREEMPTION": "on",
    "PENSTOCK_QUANTUM_MS": "400",
}
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_MAX_BATCH_SIZE": "2",
    "PENSTOCK_SIM_DECODE_TPS": "40",
    "PENSTOCK_SIM_PREFILL_TPS": "2000",
}
LLAMA = {"PENSTOCK_ENGINE": "llama", "PENSTOCK_MAX_BATCH_SIZE": "2", "PENSTOCK_DEVICE": "cpu", "PENSTOCK_THREADS": "1"}


@dataclass
class Member:
    """One place in the system that a process holds; the process changes whenever it is started again."""

    kind: str
    name: str
    arguments: list[str]
    environ: dict[str, str]
    process: Process
    #: Whether a fault has ended or is ending the process; otherwise its end is an anomaly.
    is_ending: bool = False
    #: Held while a fault acts on the process.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tree(self) -> list[psutil.Process]:
        """Return the process and its children."""
        try:
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.Error:
            return []

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        for one in self.tree():
            try:
                one.send_signal(number)
            except psutil.Error:
                continue


class System:
    """The processes, the settings they share, and what clients need to reach them."""

    def __init__(self, folder: Path, stores: RunStores, *, admission: str, llama: bool) -> None:
        self._folder = folder
        self.stores = stores
        #: The cell whose store the settings of doors name.
        self.first = next(iter(stores.clients))
        state = folder / "state"
        state.mkdir()
        engine = LLAMA | {"PENSTOCK_MODEL": str(demo_model_path())} if llama else SIM
        plain = {name: text for name, text in os.environ.items() if not name.startswith(("PENSTOCK_", "COVERAGE_"))}
        self.settings = SETTINGS | engine | {"PENSTOCK_ADMISSION": admission, "PENSTOCK_STATE_DIR": str(state)}
        self.settings |= stores.environ_of(self.first) | stores.settings
        self.max_inflight = int(self.settings["PENSTOCK_MAX_INFLIGHT"])
        #: The slots of each worker.
        self.slots = int(engine["PENSTOCK_MAX_BATCH_SIZE"])
        self.environ = plain | self.settings
        self.members: list[Member] = []
        #: Processes that ended although no fault had touched them.
        self.deaths: list[str] = []
        self.door_ports = [free_port() for _ in range(DOORS)]
        self.gate_port = free_port()
        self.keys: dict[str, str] = {}
        self._closing = threading.Event()
        self._starts = 0
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        clients = self.stores.clients
        for client in clients.values():
            Store(client).configure(load(self.settings, None))
        source = clients[self.first]
        for tenant in TENANTS:
            self.keys[tenant] = ApiKeys(source).create(tenant).key
            Tenants(source).set(tenant, TenantPolicy(**BUDGET))
        for tenant, weight in WEIGHTED.items():
            Tenants(source).set(tenant, TenantPolicy(weight=weight))
        for client in clients.values():
            if client is not source:
                copy_accounts(source, client)
        for number in range(WORKERS if len(clients) == 1 else len(clients)):
            cell = sorted(clients)[number % len(clients)]
            self._add("worker", f"worker{number}", ["workers"], self.stores.environ_of(cell))
        for number, port in enumerate(self.door_ports):
            self._add("door", f"door{number}", ["web"], {"PENSTOCK_LISTEN": f"127.0.0.1:{port}"})
        self._add("gate", "gate", ["web.gate"], {"PENSTOCK_GATE_LISTEN": f"127.0.0.1:{self.gate_port}"})
        wait_for(self._all_serve, "all processes to serve", timeout_s=300)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._watcher.join(5)
        for member in self.members:
            member.signal_all(signal.SIGKILL)
            member.process.end()

    def of_kind(self, kind: str) -> list[Member]:
        return [member for member in self.members if member.kind == kind]

    def heal(self) -> None:
        """Continue all stopped processes, and wait until all of them run and all workers are live."""
        for member in self.members:
            member.signal_all(signal.SIGCONT)
        wait_for(self._all_serve, "all processes to serve again", timeout_s=300)

    def log_tail(self, member: Member) -> str:
        return member.process.log.read_text(errors="replace")[-2_000:]

    def _add(self, kind: str, name: str, module: list[str], more: dict[str, str]) -> None:
        arguments, environ = [sys.executable, "-P", "-m", *module], self.environ | more
        self.members.append(Member(kind, name, arguments, environ, self._start(name, arguments, environ)))

    def _start(self, name: str, arguments: list[str], environ: dict[str, str]) -> Process:
        self._starts += 1
        return Process(arguments, environ, self._folder / f"{name}-{self._starts}.log")

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_S):
            for member in self.members:
                if not member.process.alive and member.lock.acquire(blocking=False):
                    try:
                        self._start_again(member)
                    finally:
                        member.lock.release()

    def _start_again(self, member: Member) -> None:
        code = member.process.exit_code()
        if not member.is_ending:
            self.deaths.append(f"{member.name} ended with code {code}: {self.log_tail(member)}")
        member.is_ending = False
        member.process = self._start(member.name, member.arguments, member.environ)

    def _all_serve(self) -> bool:
        try:
            snapshots = [Store(client).snapshot() for client in self.stores.clients.values()]
        except StoreUnavailable:
            return False
        live = {worker.facts.get("pid") for one in snapshots for worker in one.workers if worker.live}
        workers = {str(member.process.pid) for member in self.of_kind("worker")}
        ports = [*self.door_ports, self.gate_port]
        return workers <= live and all(_listens(port) for port in ports)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
