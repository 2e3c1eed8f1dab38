"""A client of OpenAI's routes that goes: wherever its job then is, it is canceled, its slot freed, its books closed."""

import http.client
import json
from collections.abc import Iterator

import pytest

from shared.job import JobView
from shared.states import JobState
from tests.support.processes import Process, Stage, wait_for
from tests.support.served import Served

#: A step of the one slot takes this long, with a word of answer or 40 of prompt: long beside what a busy machine adds.
STEP_MS = 200
SLOW = {
    "PENSTOCK_ENGINE": "sim",
    "PENSTOCK_ADMISSION": "bounds",
    "PENSTOCK_LEASE_MS": "1000",
    "PENSTOCK_MAX_BATCH_SIZE": "1",
    "PENSTOCK_SIM_DECODE_TPS": "5",
    "PENSTOCK_SIM_PREFILL_TPS": "200",
    "PENSTOCK_PREFILL_CHUNK": "40",
}
#: A cancel is in the engine so much later.
BELL_MS = 50

#: What to ask for so that the job is there when its client goes.
PHASES = {
    "queued": {"prompt": "hello", "max_tokens": 20},
    "prefill": {"prompt": "word " * 1_500, "max_tokens": 20},
    "decode": {"prompt": "hello", "max_tokens": 1_000},
}


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Process]]:
    with Stage(tmp_path_factory.mktemp("disconnects"), **SLOW) as stage:
        worker = stage.worker()
        with Served(stage) as served:
            yield served, worker


def asks(served: Served, phase: str, *, stream: bool) -> http.client.HTTPConnection:
    """A client of its own connection that has sent its request and waits."""
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    headers = {"Content-Type": "application/json", "X-Tenant": "blue"}
    client.request("POST", "/v1/completions", json.dumps(PHASES[phase] | {"stream": stream}), headers)
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


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_goes_frees_its_slot_within_two_steps_and_the_books_are_right(
    rooms: tuple[Served, Process], phase: str, stream: bool
) -> None:
    served, worker = rooms
    stage = served.stage
    known = {view.id for view in stage.store.jobs("blue").jobs}
    before = wasted(stage)
    if phase == "queued":
        other = stage.admit("other", max_tokens=1_000)
        stage.running(other)
    client = asks(served, phase, stream=stream)
    job_id = its_job(stage, known)
    if phase != "queued":
        stage.running(job_id)
        # Whoever is next has the slot as soon as it is free.
        other = stage.admit("other", max_tokens=1)
    if phase == "decode":
        stage.speaks(job_id)

    seconds, micros = stage.client.time()
    client.close()
    knows = known_to_be_canceled(stage, job_id)
    # A look at the connection every 200 ms; a busy machine takes the rest.
    assert knows.now_ms - (seconds * 1000 + micros // 1000) < 250 + 500
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
        assert 0 < usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens == wasted(stage) - before
    stage.still_sound()
    wait_for(lambda: (seen := stage.view(worker)) and seen.slots_busy == 0, "the worker to tell of a free slot")
