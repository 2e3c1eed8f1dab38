"""The metrics of a door with several processes: each answers for all, also after some were killed or replaced."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.support.processes import Process, Stage, wait_for
from tests.support.scrapes import Scrape, scrape
from tests.support.served import Served

REQUESTS = "penstock_http_requests_total"
CONNECTIONS = "penstock_http_connections"

pytestmark = pytest.mark.ways("direct", reason="the tests are about the processes behind one address")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage without a worker: the requests of these tests need none."""
    with Stage(tmp_path) as stage:
        yield stage


@pytest.fixture
def door(stage: Stage) -> Iterator[Served]:
    """A door with two processes."""
    with Served(stage, PENSTOCK_WEB_WORKERS="2") as served:
        wait_for(
            lambda: [bool(folder_of([pid])) for pid in processes_of(served.process)] == [True, True],
            "two processes that have opened their files of metrics",
        )
        yield served


def processes_of(door: Process) -> list[int]:
    """Return the pids of the door's HTTP processes."""
    return [int(pid) for pid in Path(f"/proc/{door.pid}/task/{door.pid}/children").read_text().split()]


@contextmanager
def only(pid: int, door: Served) -> Iterator[None]:
    """Let only this process answer: the others are stopped in the meantime."""
    others = [other for other in processes_of(door.process) if other != pid]
    for other in others:
        os.kill(other, signal.SIGSTOP)
        wait_for(lambda other=other: state_of(other) == "T", "the process to stop")  # type: ignore[misc]
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ask(door: Served, times: int) -> None:
    """Send requests that only these tests send, each on a connection of its own."""
    for _ in range(times):
        assert httpx.get(f"{door.url}/v1/models", timeout=30).status_code == 200


def answered(seen: Scrape) -> float:
    return seen.total(REQUESTS, route="/v1/models")


def read(door: Served) -> Scrape:
    return scrape(f"{door.url}/metrics")


def test_each_process_counts_the_requests_of_all(door: Served) -> None:
    first, second = processes_of(door.process)
    with only(first, door):
        ask(door, 5)
    with only(second, door):
        ask(door, 7)
    for pid in (first, second):
        with only(pid, door):
            seen = read(door)
        assert answered(seen) == 12
        assert seen.total("penstock_http_request_seconds_count", route="/v1/models") == 12
        assert seen.total("penstock_http_request_seconds_bucket", route="/v1/models", le="+Inf") == 12
        assert list(seen.series_of("penstock_build_info").values()) == [1]
        assert not any("process" in dict(labels) or "pid" in dict(labels) for _, labels in seen.values)


def test_what_a_killed_process_has_counted_stays_and_its_connections_go(door: Served) -> None:
    doomed, other = processes_of(door.process)
    with ExitStack() as stack:
        with only(doomed, door):
            ask(door, 5)
            for _ in range(4):
                stack.enter_context(socket.create_connection(("127.0.0.1", door.port)))
            wait_for(lambda: read(door).total(CONNECTIONS) == 5, "four idle connections and the one that asks")
        os.kill(doomed, signal.SIGKILL)
        wait_for(lambda: doomed not in processes_of(door.process), "the process to be reaped")
        wait_for(lambda: len(processes_of(door.process)) == 2, "another process")
        wait_for(lambda: read(door).total(CONNECTIONS) == 1, "the connections of the dead process not to count")
        assert answered(read(door)) == 5
        (successor,) = (pid for pid in processes_of(door.process) if pid != other)
        # It can take its first request only when its app is loaded.
        with only(successor, door):
            ask(door, 3)
            assert answered(read(door)) == 8
    assert list(read(door).series_of("penstock_build_info").values()) == [1]


class Load:
    """Two clients that ask and two scrapers that compare each scrape with the one before, until the context ends."""

    def __init__(self, door: Served) -> None:
        self._door = door
        self._done = threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._ask, self._ask, self._watch, self._watch)]
        self.answers: list[int] = []
        #: Requests whose process was killed, perhaps after it had counted them.
        self.cut_off: list[httpx.TransportError] = []
        self.scrapes: list[Scrape] = []
        self.falls: list[object] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self) -> None:
        while not self._done.is_set():
            try:
                self.answers.append(httpx.get(f"{self._door.url}/v1/models", timeout=30).status_code)
            except httpx.TransportError as error:
                self.cut_off.append(error)

    def _watch(self) -> None:
        before: Scrape | None = None
        while not self._done.is_set():
            with suppress(httpx.TransportError):
                now = read(self._door)
                self.falls += now.fallen_since(before) if before else ()
                self.scrapes.append(now)
                before = now


@pytest.mark.parametrize("replacement", ["killed", "reloaded"])
def test_no_value_falls_and_no_series_goes_while_processes_are_replaced_under_load(
    door: Served, replacement: str
) -> None:
    with Load(door) as load:
        for _ in range(2):
            old = processes_of(door.process)
            gone = old[:1] if replacement == "killed" else old
            if replacement == "killed":
                os.kill(old[0], signal.SIGKILL)
            else:
                os.kill(door.process.pid, signal.SIGHUP)
            wait_for(
                lambda gone=gone: not set(gone) & set(now := processes_of(door.process)) and len(now) == 2,  # type: ignore[misc]
                "the processes to be replaced",
                timeout_s=60,
            )
            more = len(load.scrapes) + 10
            wait_for(lambda more=more: len(load.scrapes) >= more, "ten more scrapes", timeout_s=60)  # type: ignore[misc]
    assert load.falls == []
    assert set(load.answers) == {200}
    assert len(load.answers) <= answered(read(door)) <= len(load.answers) + len(load.cut_off)


def test_a_door_leaves_no_files_of_metrics(door: Served) -> None:
    folder = folder_of(processes_of(door.process))
    assert folder is not None
    assert {file.name for file in folder.glob("*_0.db")} >= {"counter_0.db", "histogram_0.db", "gauge_livesum_0.db"}
    assert folder.stat().st_mode & 0o777 == 0o700
    door.process.terminate()
    assert door.process.exit_code() == 0
    assert not folder.exists()


def folder_of(pids: list[int]) -> Path | None:
    """Return the folder in which one of the processes keeps its metrics, or None while none has opened a file there."""
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "penstock-metrics-" in line:
                    return Path(line.split()[-1]).parent
    return None
