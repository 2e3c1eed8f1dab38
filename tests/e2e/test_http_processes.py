"""The door as it is served: gunicorn's processes, real workers, real connections."""

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared import metrics
from shared.jobs.states import JobState
from tests.support.ports import free_port
from tests.support.processes import Stage, wait_for
from tests.support.served import Address, Served, sim_served
from web.api import response_models

#: Sim engines that make a hundred words a second, and admission by bounds alone: what is tested is how it is served.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "100",
    "PENSTOCK_SIM_PREFILL_TPS": "100000",
    "PENSTOCK_ADMISSION": "bounds",
}

own_stage = pytest.mark.ways("direct", reason="tested is the process itself: how it starts, stops, is filled")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage of the test's own."""
    with Stage(tmp_path, **SIM) as stage:
        yield stage
        stage.still_sound()


@pytest.fixture
def serve(stage: Stage) -> Iterator[Callable[..., Served]]:
    """Starts ingresses on the test's own stage."""
    with ExitStack() as stack:
        yield lambda **environ: stack.enter_context(Served(stage, **environ))


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One worker and one ingress for all tests that leave them as they were."""
    with sim_served(tmp_path_factory.mktemp("common"), **SIM) as served:
        yield served


@own_stage
def test_one_place_and_twenty_clients_at_once_is_one_job_and_nineteen_yields(
    stage: Stage, serve: Callable[..., Served]
) -> None:
    stage.worker(PENSTOCK_MAX_INFLIGHT="1")
    served = serve(PENSTOCK_MAX_INFLIGHT="1")
    start = threading.Barrier(20)

    def ask(_: int) -> httpx.Response:
        with httpx.Client(base_url=served.url, timeout=30) as client:
            start.wait()
            return client.post("/v1/jobs", json={"prompt": "go", "max_tokens": 200})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] + [503] * 19
    assert max(answer.elapsed.total_seconds() for answer in answers) < 1
    for answer in answers:
        if answer.status_code == 503:
            body = response_models.Yield.model_validate(answer.json())
            assert body.reason == "inflight_full"
            assert 50 <= body.retry_hint_ms <= 60_000
    wait_for(lambda: served.figure("penstock_executed_total") == 1, "the one job to be claimed")
    assert served.figure("penstock_inflight") == 1
    assert served.figure("penstock_yielded_total") == 19
    wait_for(lambda: served.figure("penstock_inflight") == 0, "the one job to end")
    assert served.figure("penstock_executed_total") == 1


def test_a_waiting_call_answers_as_soon_as_its_job_ends(served: Address) -> None:
    job = served.submit(max_tokens=50)
    began = time.monotonic()
    read = served.http.get(job.json()["urls"]["self"], params={"wait_ms": 20_000}).json()
    assert (read["status"], read["usage"]["completion_tokens"]) == ("succeeded", 50)
    assert time.monotonic() - began < 5


def test_many_waiting_calls_and_streams_share_one_connection_to_the_store(served: Address) -> None:
    def blocked() -> int:
        clients: Any = served.stage.client.client_list()
        return sum("b" in client["flags"] and client["name"].startswith("penstock-web") for client in clients)

    ids = [served.submit(tenant=f"t{index}", max_tokens=80).json()["id"] for index in range(12)]
    with ThreadPoolExecutor(24) as pool:
        waits = [
            pool.submit(
                httpx.get, f"{served.url}/v1/jobs/{job_id}?wait_ms=20000", timeout=30, headers={"X-Tenant": f"t{index}"}
            )
            for index, job_id in enumerate(ids)
        ]
        streams = [
            pool.submit(
                httpx.get, f"{served.url}/v1/jobs/{job_id}/events", timeout=30, headers={"X-Tenant": f"t{index}"}
            )
            for index, job_id in enumerate(ids)
        ]
        wait_for(lambda: blocked() == 2, "both processes to follow")
        seen = {blocked() for _ in range(20)}
        ends = [wait.result().json()["status"] for wait in waits]
        stories = [stream.result().text for stream in streams]
    assert max(seen) <= 2
    assert ends == ["succeeded"] * 12
    for story in stories:
        words = [json.loads(line[6:])["text"] for line in story.splitlines() if line.startswith('data: {"text"')]
        assert len("".join(words).split()) == 80


def test_a_first_token_reaches_its_stream_at_once(served: Address) -> None:
    job = served.submit(max_tokens=100)
    began = time.monotonic()
    with served.http.stream("GET", job.json()["urls"]["events"]) as stream:
        for line in stream.iter_lines():
            if line == "event: token":
                break
    # A store of its own process, a word a hundredth of a second: what is left is ours.
    assert time.monotonic() - began < 1
    served.http.delete(job.json()["urls"]["self"])


def test_a_client_that_goes_takes_its_openai_call_with_it(served: Address) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/completions", json={"prompt": "go", "max_tokens": 2_000}, timeout=0.5)
    job = served.stage.store.jobs("default").jobs[0]
    ended = served.stage.ended(job.id, timeout_s=5)[0]
    assert (ended.state, ended.code) == (JobState.CANCELED, "canceled")


def test_a_reader_that_closes_an_openai_stream_takes_its_job_with_it(served: Address) -> None:
    asked = {"prompt": "go", "max_tokens": 2_000, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=asked, timeout=10) as stream:
        next(stream.iter_lines())
    job = served.stage.store.jobs("default").jobs[0]
    assert served.stage.ended(job.id, timeout_s=5)[0].state is JobState.CANCELED


def test_a_client_that_goes_leaves_a_submitted_job_alone(served: Address) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/jobs?wait_ms=20000", json={"prompt": "go", "max_tokens": 100}, timeout=0.3)
    job = served.stage.store.jobs("default").jobs[0]
    assert served.stage.ended(job.id)[0].state is JobState.SUCCEEDED


def followed(served: Served) -> int:
    """Jobs that calls of this ingress of one process wait for: each process tells its own alone."""
    shown = httpx.get(f"{served.url}/metrics").text
    (told,) = re.findall(rf"^{metrics.WAITING_CALLS.name}{{.*}} (\S+)$", shown, re.MULTILINE)
    return int(float(told))


@own_stage
def test_a_door_that_stops_ends_waits_and_streams_and_cancels_nothing(
    stage: Stage, serve: Callable[..., Served]
) -> None:
    stage.worker()
    served = serve(PENSTOCK_WEB_WORKERS="1")
    ids = [served.submit(max_tokens=400).json()["id"] for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        wait = pool.submit(httpx.get, f"{served.url}/v1/jobs/{ids[0]}?wait_ms=50000", timeout=60)
        stream = pool.submit(httpx.get, f"{served.url}/v1/jobs/{ids[1]}/events", timeout=60)
        served.stage.running(*ids)
        served.stage.speaks(ids[1])
        wait_for(lambda: followed(served) == 2, "both calls to be under way")
        served.process.terminate()
        began = time.monotonic()
        assert wait.result().json()["status"] == "running"
        assert "event: ended" not in stream.result().text
        assert served.process.exit_code() == 0
    assert time.monotonic() - began < 8
    assert [view.state for view in served.stage.ended(*ids)] == [JobState.SUCCEEDED] * 2


@pytest.mark.ways("direct", reason="slow senders wait in nginx then, not here")
def test_slow_and_idle_clients_keep_nobody_out(served: Address) -> None:
    slow = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(300)]
    try:
        for index, connection in enumerate(slow):
            # A third says nothing, a third begins a request line, a third begins a body.
            if index % 3 == 1:
                connection.sendall(b"POST /v1/jobs HT")
            elif index % 3 == 2:
                connection.sendall(
                    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 900\r\n\r\n{"
                )
        began = time.monotonic()
        assert served.submit(max_tokens=1).status_code == 202
        assert time.monotonic() - began < 2
    finally:
        for connection in slow:
            connection.close()


@own_stage
def test_a_job_expires_at_its_time_though_no_worker_looks(stage: Stage, serve: Callable[..., Served]) -> None:
    worker = stage.worker()
    served = serve()
    worker.pause()
    job = served.submit(deadline_ms=500).json()
    ended = stage.ended(job["id"], timeout_s=3)[0]
    assert ended.state is JobState.EXPIRED
    assert ended.ended_ms is not None
    assert 0 <= ended.ended_ms - ended.deadline_at_ms <= 350
    worker.resume()


@own_stage
def test_a_wrong_setting_stops_the_start_with_a_sentence(stage: Stage) -> None:
    def refused(**environ: str) -> tuple[int, str]:
        arguments = ["-m", "gunicorn", "-c", "python:web.gunicorn_conf", "web.wsgi:app"]
        process = stage.start("web", [sys.executable, *arguments], **environ)
        return process.exit_code(), process.log.read_text().strip()

    code, said = refused(PENSTOCK_COLOUR="red")
    assert (code, said) == (
        2,
        "penstock: unknown setting PENSTOCK_COLOUR='red' in the environment; `penstock config` lists all",
    )
    code, said = refused(PENSTOCK_AUTH="open", PENSTOCK_LISTEN="0.0.0.0:0")
    assert code == 2
    assert "PENSTOCK_AUTH=open is for loopback only" in said
    stage.client.config_set("maxmemory-policy", "allkeys-lru")
    code, said = refused(PENSTOCK_LISTEN=f"127.0.0.1:{free_port()}")
    stage.client.config_set("maxmemory-policy", "noeviction")
    assert code == 3
    assert "noeviction" in said
    stage.worker(PENSTOCK_MAX_QUEUE_SIZE="5")
    code, said = refused(PENSTOCK_LISTEN=f"127.0.0.1:{free_port()}")
    assert code == 2
    assert "--take-over" in said


@own_stage
def test_a_door_that_starts_before_its_store_refuses_until_it_is_there(
    stage: Stage, serve: Callable[..., Served], tmp_path: Path
) -> None:
    moved = tmp_path / "late.sock"
    began = time.monotonic()
    served = serve(REDIS_URL=f"unix://{moved}")
    answer = served.submit()
    assert (answer.status_code, answer.json()["reason"]) == (503, "store_unavailable")
    assert served.http.get("/health/ready").status_code == 503
    # Each of its two processes says so, every ten seconds.
    assert 1 <= len(served.process.said("store.awaited")) <= 2 * (1 + (time.monotonic() - began) // 10)
    moved.symlink_to(stage.url.removeprefix("unix://"))
    stage.worker()
    wait_for(lambda: served.submit(max_tokens=1).status_code == 202, "the door to serve")


def test_a_body_over_the_limit_is_413_whether_its_length_is_told_or_not(served: Address) -> None:
    body = b'{"prompt": "' + b"a" * 16_000_000 + b'"}'
    told = {"content-type": "application/json"}
    assert served.http.post("/v1/jobs", content=body, headers=told).status_code == 413
    pieces = (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    assert served.http.post("/v1/jobs", content=pieces, headers=told).status_code == 413
    assert served.http.get("/v1/queue").status_code == 200
