"""Doors and workers of the version before this one are replaced one by one under load; every job ends once."""

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared import schema
from shared.store import keys
from tests.support.ports import free_port
from tests.support.previous import Previous, drained, needs_history
from tests.support.processes import Process, Stage, wait_for

pytestmark = [needs_history, pytest.mark.minutes, pytest.mark.timeout(1800)]

SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "100",
    "PENSTOCK_SIM_PREFILL_TPS": "2000",
    "PENSTOCK_MAX_BATCH_SIZE": "4",
    "PENSTOCK_AUTH": "open",
    "PENSTOCK_WEB_WORKERS": "1",
}
#: The previous version does not pause jobs unless it is told to.
WITHOUT_PAUSES, WITH_PAUSES = (
    {"PENSTOCK_PREEMPTION": "off"},
    {"PENSTOCK_PREEMPTION": "on", "PENSTOCK_QUANTUM_MS": "100"},
)
#: No worker loses a lease, however busy the machine is.
LONG_LEASES = {"PENSTOCK_LEASE_MS": "120000"}
#: Longer than a slow machine needs to replace a process, so that no job expires.
DEADLINE_MS = 400_000


@dataclass
class Clients:
    """Clients of two tenants that send one job after another to any of the doors, and read its result from any other.

    A request that fails because its door stops is sent again with the same Idempotency-Key to a door that answers.
    """

    #: The URLs of the doors to use; replaced as a whole.
    doors: list[str]
    ended: list[dict[str, Any]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[BaseException] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number in range(6):
            thread = threading.Thread(target=self._run, args=(("blue", "red")[number % 2], number))
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let each client finish its job."""
        self._stop.set()
        for thread in self._threads:
            thread.join(300)
        assert self.faults == []

    def _run(self, tenant: str, client: int) -> None:
        try:
            with httpx.Client(headers={"X-Tenant": tenant}, timeout=60) as http:
                for number in itertools.count():
                    if self._stop.is_set():
                        return
                    self._finish(http, f"{client}-{number}", 5 + number % 60)
        except BaseException as error:  # noqa: BLE001 - the test fails with it when the clients stop
            self.faults.append(error)

    def _finish(self, http: httpx.Client, key: str, words: int) -> None:
        body = {"prompt": "tell me a story", "max_tokens": words, "deadline_ms": DEADLINE_MS}
        while True:
            answer = self._send(lambda door: http.post(f"{door}/v1/jobs", json=body, headers={"Idempotency-Key": key}))
            if answer.status_code in {200, 202}:
                break
            assert answer.json()["status"] == "yield", answer.text
            self.refused[answer.json()["reason"]] += 1
            time.sleep(answer.json()["retry_hint_ms"] / 1_000)
        job = answer.json()
        while job["ended_at"] is None:
            path = f"/v1/jobs/{job['id']}?wait_ms=2000"
            answer = self._send(lambda door, path=path: http.get(f"{door}{path}"))  # type: ignore[misc]
            # A door that stops, or a store call that takes too long, asks for the request again.
            if answer.status_code == 200:
                job = answer.json()
            else:
                assert answer.status_code == 503, answer.text
        self.ended.append(job | {"asked_words": words})

    def _send(self, request: Callable[[str], httpx.Response]) -> httpx.Response:
        until_s = time.monotonic() + 120
        for number in itertools.count(threading.get_ident() % 7):
            doors = self.doors
            try:
                return request(doors[number % len(doors)])
            except httpx.TransportError:
                assert time.monotonic() < until_s, f"no door of {doors} answers"
                time.sleep(0.05)
        raise AssertionError


@dataclass
class Scene:
    """A stage on which the previous version serves, its processes, and the clients."""

    stage: Stage
    previous: Previous
    clients: Clients
    doors: dict[str, Process]
    workers: list[Process]

    def load_goes_on(self) -> None:
        """Wait until the clients have the results of more jobs."""
        had = len(self.clients.ended)
        wait_for(
            lambda: self.clients.faults or len(self.clients.ended) >= had + 12, "results of more jobs", timeout_s=120
        )
        assert self.clients.faults == []

    def replace_workers(self) -> None:
        for old in list(self.workers):
            self.workers.append(self.stage.worker())
            self.load_goes_on()
            drained(old)
            self.workers.remove(old)
            self.load_goes_on()

    def replace_doors(self) -> None:
        for url, old in list(self.doors.items()):
            port = free_port()
            self.doors[f"http://127.0.0.1:{port}"] = self.stage.web(port)
            self.clients.doors = list(self.doors)
            self.load_goes_on()
            del self.doors[url]
            drained(old)
            self.clients.doors = list(self.doors)
            self.load_goes_on()


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Previous:
    """The previous version, whose modules are compiled only once for all tests."""
    return Previous(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def scene(tmp_path: Path, previous: Previous, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The previous version under load, with the settings of the test's parameter, which both versions know."""
    with Stage(tmp_path, **SIM, **request.param) as stage:
        workers = [previous.worker(stage), previous.worker(stage)]
        ports = [free_port(), free_port()]
        doors = {f"http://127.0.0.1:{port}": previous.web(stage, port) for port in ports}
        scene = Scene(stage, previous, Clients(list(doors)), doors, workers)
        scene.clients.start()
        try:
            scene.load_goes_on()
            yield scene
        finally:
            scene.clients.stop()


def assert_every_job_ended_once(scene: Scene) -> None:
    """Stop the clients; compare what they were told with the store's counters, and check all invariants."""
    scene.clients.stop()
    ended = scene.clients.ended
    assert len({job["id"] for job in ended}) == len(ended)
    assert Counter(job["status"] for job in ended) == {"succeeded": len(ended)}
    # A drain lets jobs end, so no job was run twice.
    assert Counter(job["attempts"] for job in ended) == {1: len(ended)}
    assert [job for job in ended if len(job["text"].split()) != job["asked_words"]] == []
    counted = sum(scene.stage.stat(f"ended|{tenant}|sim|succeeded") for tenant in ("blue", "red"))
    assert counted == len(ended)
    assert_sound_after_a_round(scene.stage)


def assert_sound_after_a_round(stage: Stage) -> None:
    """Wait until all jobs have ended and no invariant is broken.

    The previous version knows no budgets: what a new door has reserved for a job that an old worker ends is given back
    when the workers examine the tenant the next time (docs/upgrade.md).
    """
    wait_for(lambda: stage.inflight() == 0, "every admitted job to end")
    try:
        wait_for(lambda: stage.breaches() == [], "no broken invariant", timeout_s=120)
    except AssertionError:
        assert stage.breaches() == []


@pytest.mark.parametrize("scene", [WITHOUT_PAUSES | LONG_LEASES], indirect=True, ids=["without pauses"])
def test_workers_and_then_doors_are_replaced_and_every_job_ends_once(scene: Scene) -> None:
    scene.replace_workers()
    scene.replace_doors()
    assert_every_job_ended_once(scene)
    assert scene.stage.client.hget(keys.config(), "schema") == str(schema.NUMBER).encode()


@pytest.mark.parametrize("scene", [WITH_PAUSES], indirect=True, ids=["with pauses"])
def test_after_the_doors_a_worker_takes_over_the_jobs_of_a_killed_one_of_the_other_version(scene: Scene) -> None:
    """The claims, leases and events of a new worker are understood by the old one, and the other way round."""
    scene.replace_doors()
    new = scene.stage.worker()
    wait_for(lambda: new.log_lines("job.ended"), "the new worker to have ended a job", timeout_s=120)
    new.kill()
    scene.load_goes_on()
    new = scene.stage.worker()
    wait_for(lambda: new.log_lines("job.ended"), "the new worker to have ended a job", timeout_s=120)
    for old in scene.workers:
        old.kill()
    scene.load_goes_on()
    scene.clients.stop()
    ended = scene.clients.ended
    assert Counter(job["status"] for job in ended) == {"succeeded": len(ended)}
    assert [job for job in ended if len(job["text"].split()) != job["asked_words"]] == []
    assert_sound_after_a_round(scene.stage)


def test_the_previous_version_refuses_a_store_that_only_newer_ones_may_use(tmp_path: Path, previous: Previous) -> None:
    with Stage(tmp_path, **SIM) as stage:
        stage.worker()
        newer = str(schema.NUMBER + 1)
        stage.client.hset(keys.config(), mapping={"schema": newer, "schema_oldest": newer})
        for name, module in (("web", "web"), ("worker", "workers")):
            process = stage.start(name, [sys.executable, "-P", "-m", module], **previous.environ())
            assert process.exit_code(timeout_s=120) == 2
            said = process.log.read_text(errors="replace")
            assert f"the store has format {newer}" in said
            assert "upgrade this process" in said
