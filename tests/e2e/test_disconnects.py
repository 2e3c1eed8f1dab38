"""A client that goes takes its job with it, on every door that owns jobs: its slot is freed, its books are closed."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from shared.jobs.job import JobView
from shared.jobs.states import JobState
from tests.support.gate import SLOW, GateClient, a_gate, submit_frame
from tests.support.processes import Process, Stage, wait_for
from tests.support.served import Address, Served

#: A step of the one slot takes this long, with a word of answer or 40 of prompt: long beside what a busy machine adds.
STEP_MS = 200
SLOWER = SLOW | {"PENSTOCK_SIM_DECODE_TPS": "5", "PENSTOCK_SIM_PREFILL_TPS": "200"}
#: A cancel is in the engine so much later.
BELL_MS = 50
#: A look at the connection every 200 ms, and what a busy machine adds.
SEEN_MS = 250 + 500

#: What to ask for so that the job is there when its client goes: words of the prompt, and of the answer.
PHASES = {"queued": (1, 20), "prefill": (1_500, 20), "decode": (1, 1_000)}


def completion(prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens}


def chat(prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}


def response(prompt: str, max_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": prompt, "max_output_tokens": max_tokens}


CALLS = {
    "completion": (completion, False),
    "chat stream": (chat, True),
    "response": (response, False),
    "response stream": (response, True),
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("disconnects"), **SLOWER) as stage:
        yield stage


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


def asks(served: Address, call: str, phase: str) -> http.client.HTTPConnection:
    """A client of its own connection that has sent its request and waits."""
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    words, max_tokens = PHASES[phase]
    (body_of, stream) = CALLS[call]
    path, body = body_of("word " * words, max_tokens)
    headers = {"Content-Type": "application/json", "X-Tenant": "blue"}
    client.request("POST", path, json.dumps(body | {"stream": stream}), headers)
    return client


def its_job(stage: Stage, known: set[str]) -> str:
    """The job that tenant blue has and had not before."""
    new = wait_for(lambda: {view.id for view in stage.store.jobs("blue").jobs} - known, "the job to be admitted")
    (job_id,) = new
    return job_id


def known_to_be_canceled(stage: Stage, job_id: str) -> JobView:
    """The job at the first look that finds the cancel written; its `now_ms` is that moment at the latest."""
    return wait_for(
        lambda: (view := stage.job(job_id)) and (view.cancel_requested or view.ended_ms) and view,
        "the door to see that the client has gone",
    )


def wasted(stage: Stage) -> int:
    return stage.stat("wasted|blue|canceled")


def goes(stage: Stage, worker: Process, phase: str, ask: Callable[[], Callable[[], None]]) -> None:
    """Ask, go when the job is in this phase, and see what becomes of the job, its slot and the books.

    `ask` answers how to close its connection.
    """
    known = {view.id for view in stage.store.jobs("blue").jobs}
    before = wasted(stage)
    if phase == "queued":
        other = stage.admit("other", max_tokens=1_000)
        stage.running(other)
    close = ask()
    job_id = its_job(stage, known)
    if phase != "queued":
        stage.running(job_id)
        # Whoever is next has the slot as soon as it is free.
        other = stage.admit("other", max_tokens=1)
    if phase == "decode":
        stage.speaks(job_id)

    seconds, micros = stage.client.time()
    close()
    knows = known_to_be_canceled(stage, job_id)
    assert knows.now_ms - (seconds * 1000 + micros // 1000) < SEEN_MS
    (ended,) = stage.ended(job_id)
    assert (ended.state, ended.code) == (JobState.CANCELED, "canceled")

    if phase == "queued":
        assert ended.attempts == 0
        assert stage.job(other).state is JobState.RUNNING
        assert wasted(stage) == before
        stage.store.cancel(other)
    else:
        assert ended.stage in {"", phase}
        (after,) = stage.ended(other)
        assert after.started_ms is not None
        assert after.started_ms - knows.now_ms <= BELL_MS + 2 * STEP_MS
        usage = ended.usage
        assert usage is not None
        assert (usage.completion_tokens > 0) == (phase == "decode")
        asked, spent = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens, wasted(stage) - before
        # Of a prompt left half-read only what was computed counts: to the token in tests/faults/test_ledgers.py.
        assert 0 < spent == asked if phase == "decode" else 0 <= spent < asked
    stage.still_sound()
    wait_for(lambda: (seen := stage.view(worker)) and seen.slots_busy == 0, "the worker to tell of a free slot")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_goes_frees_its_slot_within_two_steps_and_the_books_are_right(
    served: Address, worker: Process, phase: str, call: str
) -> None:
    with ExitStack() as stack:
        goes(served.stage, worker, phase, lambda: stack.enter_context(closing(asks(served, call, phase))).close)


@pytest.mark.ways("direct", reason="the gate is no HTTP")
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_of_the_gate_that_goes_frees_its_slot_within_two_steps_and_the_books_are_right(
    stage: Stage, worker: Process, gate_port: int, phase: str
) -> None:
    words, max_tokens = PHASES[phase]

    with GateClient.at(gate_port) as client:

        def ask() -> Callable[[], None]:
            client.send(submit_frame(prompt="word " * words, max_tokens=max_tokens))
            return client.close

        goes(stage, worker, phase, ask)
