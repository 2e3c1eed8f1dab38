"""A client that goes takes its job with it: wherever the job is, whatever the client had asked for."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shared.job import JobView
from shared.states import JobState
from tests.support.processes import Stage, wait_for
from tests.support.served import Served

#: One slot, so that a second job waits; half a second a step of prompt, so that a job can be met there.
SIM = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_SIM_DECODE_TPS": "100",
    "PENSTOCK_SIM_PREFILL_TPS": "1000",
    "PENSTOCK_MAX_BATCH_SIZE": "1",
    "PENSTOCK_N_CTX": "8192",
    "PENSTOCK_KV_CELLS": "8192",
    "PENSTOCK_ADMISSION": "bounds",
}
LONG = "word " * 5_000

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"max_tokens": 2_000}),
    "chat stream": ("/v1/chat/completions", {"max_tokens": 2_000, "stream": True}),
    "response": ("/v1/responses", {"max_output_tokens": 2_000}),
    "response stream": ("/v1/responses", {"max_output_tokens": 2_000, "stream": True}),
}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Stage(tmp_path_factory.mktemp("disconnects"), **SIM) as stage:
        stage.worker()
        with Served(stage) as served:
            yield served


@pytest.fixture
def served(common: Served) -> Iterator[Served]:
    yield common
    wait_for(lambda: common.stage.inflight() == 0, "every place to be free", timeout_s=5)
    common.stage.still_sound()


@contextmanager
def call(served: Served, name: str, text: str) -> Iterator[socket.socket]:
    """A connection that has asked."""
    path, asked = CALLS[name]
    said = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"input": text}
    body = json.dumps(asked | said).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        yield connection


def newest(served: Served, state: JobState) -> JobView | None:
    """The job that came last, when it is in this state."""
    job = next(iter(served.stage.store.jobs("default", limit=1).jobs), None)
    return job if job is not None and job.state is state else None


def has_text(served: Served, job: JobView) -> bool:
    told = served.stage.store.read_events({job.id: "0"}, block_ms=0).get(job.id, [])
    return any(fields["type"] == "token" for _, fields in told)


def gone_with_it(served: Served, connection: socket.socket, job: JobView) -> JobView:
    """The job as it ended by the close, within what the close, two steps and a settle take."""
    connection.close()
    return wait_for(
        lambda: found if (found := served.stage.store.touch(job.id)) and found.state is JobState.CANCELED else None,
        "the job to be canceled",
        timeout_s=3,
    )


@pytest.mark.parametrize("name", CALLS)
def test_it_goes_from_the_queue(served: Served, name: str) -> None:
    first = served.submit(max_tokens=2_000).json()
    wait_for(lambda: newest(served, JobState.RUNNING), "the first job to run")
    with call(served, name, "hello") as connection:
        waiting = wait_for(lambda: newest(served, JobState.QUEUED), "the second to wait")
        ended = gone_with_it(served, connection, waiting)
    assert (ended.first_claim_ms, served.stage.inflight()) == (None, 1)
    served.http.delete(first["urls"]["self"])


@pytest.mark.parametrize("name", CALLS)
def test_it_goes_from_its_prompt(served: Served, name: str) -> None:
    with call(served, name, LONG) as connection:
        running = wait_for(lambda: newest(served, JobState.RUNNING), "the job to run")
        assert not has_text(served, running)
        ended = gone_with_it(served, connection, running)
    assert ended.usage is not None
    assert ended.usage.completion_tokens == 0


@pytest.mark.parametrize("name", CALLS)
def test_it_goes_from_its_answer(served: Served, name: str) -> None:
    with call(served, name, "hello") as connection:
        running = wait_for(lambda: newest(served, JobState.RUNNING), "the job to run")
        wait_for(lambda: has_text(served, running), "its first text")
        ended = gone_with_it(served, connection, running)
    assert ended.usage is not None
    assert 0 < ended.usage.completion_tokens < 1_000
