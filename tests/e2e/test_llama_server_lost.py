"""A real llama-server is killed under load, and one of two: every job ends once. `make test-upstream` runs this."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from shared.jobs.job import JobView
from tests.support.llama_server import LLAMA_SERVER, WHY_SKIPPED, LlamaServer
from tests.support.processes import Stage, wait_for
from tests.support.served import Served
from workers.demo import demo_model_path

pytestmark = [
    pytest.mark.skipif(not LLAMA_SERVER, reason=WHY_SKIPPED),
    pytest.mark.ways("direct", reason="what is behind the door does not depend on the way to it"),
]

#: How long the server is away, and how many clients send one job after another.
AWAY_S, CLIENTS = 20.0, 8
JOB: dict[str, Any] = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 60, "deadline_ms": 240_000}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[LlamaServer]]:
    """Two servers of the demo model with two slots each."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with (
        LlamaServer(demo_model_path(), folders[0], slots=2) as one,
        LlamaServer(demo_model_path(), folders[1], slots=2) as two,
    ):
        yield [one, two]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    environ = {
        "PENSTOCK_ENGINE": "upstream",
        "PENSTOCK_UPSTREAM_MODEL": "demo",
        "PENSTOCK_UPSTREAM_CONCURRENCY": "2",
        "PENSTOCK_ADMISSION": "bounds",
        "PENSTOCK_LEASE_MS": "2500",
    }
    with Stage(tmp_path, **environ) as stage:
        yield stage


class Load:
    """Clients that send one job after another until they are told to stop."""

    def __init__(self, served: Served) -> None:
        self._served, self._stop = served, Event()
        self.admitted: list[str] = []
        self.refused: set[str] = set()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._clients: list[Future[None]] = [self._pool.submit(self._send, f"t{i}") for i in range(CLIENTS)]

    def _send(self, tenant: str) -> None:
        while not self._stop.is_set():
            answer = self._served.submit(tenant, **JOB)
            body = answer.json()
            if answer.status_code != 202:
                self.refused.add(body["reason"])
                self._stop.wait(body["retry_hint_ms"] / 1000)
                continue
            self.admitted.append(body["id"])
            wait_for(
                lambda job_id=body["id"]: self._stop.is_set() or self._served.stage.job(job_id).ended_ms is not None,
                "the end of the client's job",
                timeout_s=240,
            )

    def end(self) -> list[JobView]:
        """Stop the clients, and return the jobs once all have ended. Each must have succeeded once."""
        self._stop.set()
        for client in self._clients:
            client.result(60)
        self._pool.shutdown()
        views = self._served.stage.ended(*self.admitted, timeout_s=240)
        assert {view.state.value for view in views} == {"succeeded"}
        assert self._served.stage.stat("ended|succeeded") == len(views)
        return views


def n_ended(load: Load, stage: Stage) -> int:
    return sum(view.ended_ms is not None for view in stage.jobs(list(load.admitted)))


def test_a_server_that_is_killed_under_load_and_away_for_20_s_fails_no_job(
    stage: Stage, servers: list[LlamaServer]
) -> None:
    server = servers[0]
    stage.worker(PENSTOCK_UPSTREAM_URL=server.url)
    with Served(stage) as served:
        load = Load(served)
        wait_for(lambda: n_ended(load, stage) >= CLIENTS, "some jobs to have ended", timeout_s=120)
        wait_for(lambda: server.busy_slots() == 2, "the server to be busy", timeout_s=60)
        server.kill()
        killed_s, before = monotonic(), len(load.admitted)
        wait_for(lambda: monotonic() - killed_s >= AWAY_S, "the time that the server is away", timeout_s=2 * AWAY_S)
        server.start()
        wait_for(lambda: len(load.admitted) > before + CLIENTS, "new jobs after that", timeout_s=120)
        views = load.end()
        # Only the jobs that were cut in the middle of their answers lost an attempt.
        assert sum(view.attempts - 1 for view in views) <= 2
        assert load.refused <= {"no_worker"}
        stage.assert_sound()


def test_of_two_servers_of_a_pool_one_is_killed_under_load_and_no_job_fails(
    stage: Stage, servers: list[LlamaServer]
) -> None:
    for server in servers:
        stage.worker(PENSTOCK_UPSTREAM_URL=server.url)
    with Served(stage) as served:
        load = Load(served)
        wait_for(lambda: all(server.busy_slots() == 2 for server in servers), "busy servers", timeout_s=120)
        servers[0].kill()
        before = n_ended(load, stage)
        wait_for(lambda: n_ended(load, stage) > before + 2 * CLIENTS, "the other server to go on", timeout_s=240)
        views = load.end()
        assert sum(view.attempts - 1 for view in views) <= 2
        # The pool had a live worker at all times.
        assert load.refused == set()
        stage.assert_sound()
