"""The HTTP door as it is served: gunicorn's processes, real workers, real connections."""

import http.client
import json
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

from shared.jobs.states import JobState
from shared.metrics.process import FOLLOWED_JOBS
from tests.support.ports import free_port
from tests.support.processes import Stage, in_time, wait_for
from tests.support.scrapes import scrape
from tests.support.served import Address, Served, sim_served
from web.openapi import response_models

#: Sim engines that make 100 words a second, and admission by bounds alone: these tests are about serving.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "100",
    "PENSTOCK_SIM_PREFILL_TPS": "100000",
    "PENSTOCK_ADMISSION": "bounds",
}

own_stage = pytest.mark.ways("direct", reason="the test is about the process: how it starts, stops or is filled")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage for one test."""
    with Stage(tmp_path, **SIM) as stage:
        yield stage
        stage.assert_sound()


@pytest.fixture
def serve(stage: Stage) -> Iterator[Callable[..., Served]]:
    """A function that starts an ingress on the test's own stage."""
    with ExitStack() as stack:
        yield lambda **environ: stack.enter_context(Served(stage, **environ))


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One worker and one ingress for all tests that leave both as they were."""
    with sim_served(tmp_path_factory.mktemp("common"), **SIM) as served:
        yield served


@own_stage
def test_with_max_inflight_1_one_of_twenty_clients_is_admitted_and_nineteen_get_a_yield(
    stage: Stage, serve: Callable[..., Served]
) -> None:
    stage.worker(PENSTOCK_MAX_INFLIGHT="1")
    served = serve(PENSTOCK_MAX_INFLIGHT="1")
    start = threading.Barrier(20)

    def submit(_: int) -> httpx.Response:
        with httpx.Client(base_url=served.url, timeout=30) as client:
            start.wait()
            return client.post("/v1/jobs", json={"prompt": "go", "max_tokens": 2_000})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(submit, range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] + [503] * 19
    # The job would run for 20 s, so no answer waited for its end.
    assert max(answer.elapsed.total_seconds() for answer in answers) < 10
    for answer in answers:
        if answer.status_code == 503:
            body = response_models.Yield.model_validate(answer.json())
            assert body.reason == "inflight_full"
            assert 50 <= body.retry_hint_ms <= 60_000
    wait_for(lambda: served.figure("penstock_executed_total") == 1, "the one job to be claimed")
    assert served.figure("penstock_inflight") == 1
    assert served.figure("penstock_yielded_total") == 19
    (admitted,) = [answer.json() for answer in answers if answer.status_code == 202]
    served.http.delete(admitted["urls"]["self"])
    wait_for(lambda: served.figure("penstock_inflight") == 0, "the one job to end")
    assert served.figure("penstock_executed_total") == 1


def test_a_waiting_call_answers_as_soon_as_its_job_ends(served: Address) -> None:
    job = served.submit(max_tokens=50)
    began = time.monotonic()
    read = served.http.get(job.json()["urls"]["self"], params={"wait_ms": 20_000}).json()
    assert (read["status"], read["usage"]["completion_tokens"]) == ("succeeded", 50)
    assert time.monotonic() - began < 5


def test_waiting_calls_and_streams_share_one_store_connection_per_process(served: Address) -> None:
    def blocked() -> int:
        clients: Any = served.stage.client.client_list()
        return sum("b" in client["flags"] and client["name"].startswith("penstock-web") for client in clients)

    # They last long enough for all calls to begin on a slow machine.
    ids = [served.submit(tenant=f"t{index}", max_tokens=300).json()["id"] for index in range(12)]
    with ThreadPoolExecutor(24) as pool:
        waits = [
            pool.submit(
                httpx.get, f"{served.url}/v1/jobs/{job_id}?wait_ms=40000", timeout=60, headers={"X-Tenant": f"t{index}"}
            )
            for index, job_id in enumerate(ids)
        ]
        streams = [
            pool.submit(
                httpx.get, f"{served.url}/v1/jobs/{job_id}/events", timeout=60, headers={"X-Tenant": f"t{index}"}
            )
            for index, job_id in enumerate(ids)
        ]
        wait_for(lambda: blocked() == 2, "both processes to follow")
        seen = {blocked() for _ in range(20)}
        statuses = [wait.result().json()["status"] for wait in waits]
        stream_texts = [stream.result().text for stream in streams]
    assert max(seen) <= 2
    assert statuses == ["succeeded"] * 12
    for stream_text in stream_texts:
        words = [json.loads(line[6:])["text"] for line in stream_text.splitlines() if line.startswith('data: {"text"')]
        assert len("".join(words).split()) == 300


def test_the_first_token_reaches_its_stream_long_before_the_last_is_computed(served: Address) -> None:
    job = served.submit(max_tokens=2_000)
    began = time.monotonic()
    with served.http.stream("GET", job.json()["urls"]["events"]) as stream:
        for line in stream.iter_lines():
            if line == "event: token":
                break
    # A word takes 10 ms, so the answer takes 20 s.
    assert time.monotonic() - began < 10
    served.http.delete(job.json()["urls"]["self"])


def leave_after_admission(served: Address, path: str, max_tokens: int) -> str:
    """Post a request, and close its connection once its job is admitted; return the job's id."""
    admitted = served.stage.stat("admitted")
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    body = json.dumps({"prompt": "go", "max_tokens": max_tokens})
    client.request("POST", path, body, {"Content-Type": "application/json"})
    wait_for(lambda: served.stage.stat("admitted") > admitted, "the job to be admitted")
    client.close()
    return served.stage.store.jobs("default").jobs[0].id


def test_a_disconnect_cancels_the_job_of_an_openai_call(served: Address) -> None:
    ended = served.stage.ended(leave_after_admission(served, "/v1/completions", 4_000))[0]
    assert (ended.state, ended.code) == (JobState.CANCELED, "canceled")


def test_closing_an_openai_stream_cancels_its_job(served: Address) -> None:
    body = {"prompt": "go", "max_tokens": 4_000, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=10) as stream:
        next(stream.iter_lines())
    job = served.stage.store.jobs("default").jobs[0]
    assert served.stage.ended(job.id)[0].state is JobState.CANCELED


def test_a_disconnect_does_not_cancel_a_submitted_job(served: Address) -> None:
    job_id = leave_after_admission(served, "/v1/jobs?wait_ms=20000", 100)
    assert served.stage.ended(job_id)[0].state is JobState.SUCCEEDED


def count_followed_jobs(served: Served) -> int:
    """Return how many jobs the processes of this ingress follow."""
    return int(scrape(f"{served.url}/metrics").total(FOLLOWED_JOBS.name))


@own_stage
def test_a_stopping_door_ends_waits_and_streams_and_cancels_nothing(stage: Stage, serve: Callable[..., Served]) -> None:
    stage.worker()
    served = serve(PENSTOCK_WEB_WORKERS="1")
    ids = [served.submit(max_tokens=400).json()["id"] for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        wait = pool.submit(httpx.get, f"{served.url}/v1/jobs/{ids[0]}?wait_ms=50000", timeout=60)
        stream = pool.submit(httpx.get, f"{served.url}/v1/jobs/{ids[1]}/events", timeout=60)
        served.stage.wait_until_running(*ids)
        served.stage.wait_for_text(ids[1])
        wait_for(lambda: count_followed_jobs(served) == 2, "both calls to be under way")
        served.process.terminate()
        began = time.monotonic()
        assert wait.result().json()["status"] == "running"
        assert "event: ended" not in stream.result().text
        assert served.process.exit_code() == 0
    assert time.monotonic() - began < 8
    assert [view.state for view in served.stage.ended(*ids)] == [JobState.SUCCEEDED] * 2


@pytest.mark.ways("direct", reason="behind nginx, slow senders wait in nginx and not in the door")
def test_slow_and_idle_clients_do_not_block_another_client(served: Address) -> None:
    slow = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(300)]
    try:
        for index, connection in enumerate(slow):
            # One third sends nothing, one third starts a request line, one third starts a body.
            if index % 3 == 1:
                connection.sendall(b"POST /v1/jobs HT")
            elif index % 3 == 2:
                connection.sendall(
                    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 900\r\n\r\n{"
                )

        def attempt() -> list[tuple[float, float]]:
            began = time.monotonic()
            assert served.submit(max_tokens=1).status_code == 202
            return [(time.monotonic() - began, 2)]

        in_time(attempt)
    finally:
        for connection in slow:
            connection.close()


@own_stage
def test_a_job_expires_on_time_while_its_worker_is_paused(stage: Stage, serve: Callable[..., Served]) -> None:
    worker = stage.worker()
    served = serve()

    def attempt() -> list[tuple[float, float]]:
        worker.pause()
        (ended,) = stage.ended(served.submit(deadline_ms=500).json()["id"])
        worker.resume()
        assert ended.state is JobState.EXPIRED
        assert ended.ended_ms is not None
        assert ended.ended_ms >= ended.deadline_at_ms
        wait_for(lambda: stage.view(worker), "the worker to be live again")
        return [((ended.ended_ms - ended.deadline_at_ms) / 1_000, 0.35)]

    in_time(attempt)


@own_stage
def test_an_invalid_setting_stops_the_start_and_is_named(stage: Stage) -> None:
    def failed_start(**environ: str) -> tuple[int, str]:
        process = stage.start("web", [sys.executable, "-P", "-m", "web"], **environ)
        return process.exit_code(), process.log.read_text().strip()

    code, message = failed_start(PENSTOCK_COLOUR="red")
    assert (code, message) == (
        2,
        "penstock: unknown setting PENSTOCK_COLOUR='red' in the environment; `penstock config` lists all settings",
    )
    code, message = failed_start(PENSTOCK_AUTH="open", PENSTOCK_LISTEN="0.0.0.0:0")
    assert code == 2
    assert "PENSTOCK_AUTH=open is for loopback addresses only" in message
    stage.client.config_set("maxmemory-policy", "allkeys-lru")
    code, message = failed_start(PENSTOCK_LISTEN=f"127.0.0.1:{free_port()}")
    stage.client.config_set("maxmemory-policy", "noeviction")
    assert code == 3
    assert "noeviction" in message
    stage.worker(PENSTOCK_MAX_QUEUE_SIZE="5")
    code, message = failed_start(PENSTOCK_LISTEN=f"127.0.0.1:{free_port()}")
    assert code == 2
    assert "--take-over" in message


@own_stage
def test_doors_that_keep_files_in_different_places_do_not_run_together(
    stage: Stage, serve: Callable[..., Served], tmp_path: Path
) -> None:
    folder = str(tmp_path / "files")
    serve(PENSTOCK_FILES_DIR=folder)
    serve(PENSTOCK_FILES_DIR=folder)
    for chosen, expected in (("", "PENSTOCK_FILES_DIR is not set"), (str(tmp_path / "other"), "is not this one")):
        environ = {"PENSTOCK_LISTEN": f"127.0.0.1:{free_port()}", "PENSTOCK_FILES_DIR": chosen}
        process = stage.start("web", [sys.executable, "-P", "-m", "web"], **environ)
        assert process.exit_code() == 2
        assert expected in process.log.read_text()


@own_stage
def test_a_door_that_starts_before_its_store_refuses_jobs_until_the_store_answers(
    stage: Stage, serve: Callable[..., Served], tmp_path: Path
) -> None:
    late_socket = tmp_path / "late.sock"
    began = time.monotonic()
    served = serve(REDIS_URL=f"unix://{late_socket}")
    answer = served.submit()
    assert (answer.status_code, answer.json()["reason"]) == (503, "store_unavailable")
    assert served.http.get("/health/ready").status_code == 503
    # Each of the door's two processes logs this every ten seconds.
    assert 1 <= len(served.process.log_lines("store.awaited")) <= 2 * (1 + (time.monotonic() - began) // 10)
    late_socket.symlink_to(stage.url.removeprefix("unix://"))
    stage.worker()
    wait_for(lambda: served.submit(max_tokens=1).status_code == 202, "the door to serve")


def test_a_body_over_the_limit_is_413_with_and_without_a_content_length(served: Address) -> None:
    body = b'{"prompt": "' + b"a" * 16_000_000 + b'"}'
    headers = {"content-type": "application/json"}
    assert served.http.post("/v1/jobs", content=body, headers=headers).status_code == 413
    pieces = (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    assert served.http.post("/v1/jobs", content=pieces, headers=headers).status_code == 413
    assert served.http.get("/v1/queue").status_code == 200
