"""A client that disconnects cancels the job that its call owns: the slot is freed and the counters are right."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from shared.jobs.job import JobView
from shared.jobs.states import JobState
from tests.support.gate import SLOW, GateClient, a_gate, submit_frame
from tests.support.processes import Process, Stage, in_time, wait_for
from tests.support.served import Address, Served

#: One step of the only slot: one word of answer, or 40 of prompt. It is long compared with a busy machine's delays.
STEP_MS = 200
SLOWER = SLOW | {"PENSTOCK_SIM_DECODE_TPS": "5", "PENSTOCK_SIM_PREFILL_TPS": "200"}
#: A cancel reaches the engine within this time.
CANCEL_DELIVERY_MS = 50
#: A disconnect is detected within 250 ms; a busy machine may add 500 ms.
DETECTION_MS = 250 + 500

#: For each phase, the words of prompt and of answer for which a job is in this phase when its client disconnects.
PHASES = {"queued": (1, 20), "prefill": (1_500, 20), "decode": (1, 1_000)}


def completion(prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens}


def chat(prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}


def response(prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": prompt, "max_output_tokens": max_tokens}


def message(prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}


CALLS = {
    "completion": (completion, False),
    "chat stream": (chat, True),
    "response": (response, False),
    "response stream": (response, True),
    "message stream": (message, True),
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # With preemption, a tenant that has had nothing gets the only slot after a quarter of a second.
    with Stage(tmp_path_factory.mktemp("disconnects"), PENSTOCK_PREEMPTION="off", **SLOWER) as stage:
        yield stage


@pytest.fixture(autouse=True)
def no_job_is_left_for_the_next_test(stage: Stage) -> Iterator[None]:
    yield
    for view in [*stage.store.jobs("blue").jobs, *stage.store.jobs("other").jobs]:
        if not view.ended_ms:
            stage.store.cancel(view.id)


@pytest.fixture(scope="module")
def worker(stage: Stage) -> Process:
    return stage.worker()


@pytest.fixture(scope="module")
def common(stage: Stage, worker: Process) -> Iterator[Served]:
    with Served(stage) as served:
        yield served


@pytest.fixture(scope="module")
def gate_port(stage: Stage, worker: Process) -> int:
    return a_gate(stage)[1]


def send_request(served: Address, call: str, phase: str) -> http.client.HTTPConnection:
    """Send a request on a connection of its own; return the connection without reading the answer."""
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    words, max_tokens = PHASES[phase]
    (body_of, stream) = CALLS[call]
    path, body = body_of("word " * words, max_tokens)
    headers = {"Content-Type": "application/json", "X-Tenant": "blue"}
    client.request("POST", path, json.dumps(body | {"stream": stream}), headers)
    return client


def find_new_job(stage: Stage, known: set[str]) -> str:
    """Return the id of tenant blue's new job, which is not in `known`."""
    new = wait_for(lambda: {view.id for view in stage.store.jobs("blue").jobs} - known, "the job to be admitted")
    (job_id,) = new
    return job_id


def wait_for_cancel(stage: Stage, job_id: str) -> JobView:
    """Return the job as it was when its cancel was first seen; the cancel was written at its `now_ms` or before."""
    return wait_for(
        lambda: (view := stage.job(job_id)) and (view.cancel_requested or view.ended_ms) and view,
        "the door to detect the disconnect",
    )


def wasted_tokens(stage: Stage) -> int:
    return stage.stat("wasted|blue|canceled")


def check_disconnect(
    stage: Stage, worker: Process, phase: str, ask: Callable[[], Callable[[], None]]
) -> list[tuple[float, float]]:
    """Send a request, disconnect when the job is in this phase, and check the job, its slot and the counters.

    `ask` sends the request and returns the function that closes the connection. Return how long it took until the
    disconnect was detected, and until the slot was free, each with its limit.
    """
    known = {view.id for view in stage.store.jobs("blue").jobs}
    before = wasted_tokens(stage)
    if phase == "queued":
        other = stage.admit("other", max_tokens=1_000)
        stage.wait_until_running(other)
    close = ask()
    job_id = find_new_job(stage, known)
    if phase != "queued":
        stage.wait_until_running(job_id)
        # The next job gets the slot as soon as it is free.
        other = stage.admit("other", max_tokens=1)
    if phase == "decode":
        stage.wait_for_text(job_id)

    seconds, micros = stage.client.time()
    close()
    canceled = wait_for_cancel(stage, job_id)
    took = [(canceled.now_ms - (seconds * 1000 + micros // 1000), DETECTION_MS)]
    (ended,) = stage.ended(job_id)
    assert (ended.state, ended.code) == (JobState.CANCELED, "canceled")

    if phase == "queued":
        assert ended.attempts == 0
        assert stage.job(other).state is JobState.RUNNING
        assert wasted_tokens(stage) == before
        stage.store.cancel(other)
    else:
        assert ended.stage in {"", phase}
        (after,) = stage.ended(other)
        assert after.started_ms is not None
        took.append((after.started_ms - canceled.now_ms, CANCEL_DELIVERY_MS + 2 * STEP_MS))
        usage = ended.usage
        assert usage is not None
        assert (usage.completion_tokens > 0) == (phase == "decode")
        told = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
        assert wasted_tokens(stage) - before == told
        # Only the computed part of a prompt counts.
        assert told > 0 if phase == "decode" else usage.prompt_tokens < ended.prompt_tokens
    stage.assert_sound()
    wait_for(lambda: (view := stage.view(worker)) and view.slots_busy == 0, "the worker to report a free slot")
    return [(took_ms / 1_000, limit_ms / 1_000) for took_ms, limit_ms in took]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_disconnect_frees_the_slot_within_two_steps_and_the_counters_are_right(
    served: Address, worker: Process, phase: str, call: str
) -> None:
    with ExitStack() as stack:

        def ask() -> Callable[[], None]:
            return stack.enter_context(closing(send_request(served, call, phase))).close

        in_time(lambda: check_disconnect(served.stage, worker, phase, ask))


@pytest.mark.ways("direct", reason="the gate does not speak HTTP")
@pytest.mark.parametrize("phase", PHASES)
def test_a_disconnect_from_the_gate_frees_the_slot_within_two_steps_and_the_counters_are_right(
    stage: Stage, worker: Process, gate_port: int, phase: str
) -> None:
    words, max_tokens = PHASES[phase]
    with ExitStack() as stack:

        def ask() -> Callable[[], None]:
            client = stack.enter_context(GateClient.at(gate_port))
            client.send(submit_frame(prompt="word " * words, max_tokens=max_tokens))
            return client.close

        in_time(lambda: check_disconnect(stage, worker, phase, ask))
