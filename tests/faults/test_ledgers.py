"""The store's ledgers of tokens against the engine's own counters: without kills they agree to the token."""

import pytest

from shared.jobs.states import JobState
from shared.store.replies import CancelAnswer
from tests.support.processes import Stage, wait_for

SLOW = {"PENSTOCK_MAX_BATCH_SIZE": "4", "PENSTOCK_SIM_PREFILL_TPS": "200", "PENSTOCK_WORKER_LISTEN": "127.0.0.1:0"}
#: Half a second of prompt.
LONG = {"payload": {"prompt": "word " * 100}, "prompt_tokens": 100}


@pytest.fixture
def worker(stage):
    """Four slots, 200 words of prompt and 100 of answer a second, and its own counters on a port."""
    return stage.worker(**SLOW)


def sum_of(stage: Stage, *names: str) -> int:
    """The sum of the store's counters whose names begin and end so: `wasted||canceled`, over all tenants."""
    stats = stage.store.snapshot().stats
    return sum(
        count
        for field, count in stats.items()
        if any(field.startswith(name.split("||")[0] + "|") and field.endswith(name.split("||")[1]) for name in names)
    )


def engine_computed(worker) -> int:
    """Tokens that the engine computed, by its own count: prompts and answers."""
    prompt, completion = "penstock_worker_prompt_tokens_total", "penstock_worker_completion_tokens_total"
    return int(worker.figure(prompt) + worker.figure(completion))


def store_computed(stage: Stage) -> int:
    """The same by the store's ledger of tokens."""
    return sum_of(stage, "tokens||prompt", "tokens||completion") - sum_of(stage, "tokens||cached")


def agree(stage: Stage, worker) -> None:
    """Every token is in the books once; a cancel's last step may still be under way."""
    wait_for(lambda: engine_computed(worker) == store_computed(stage), "the books to agree", timeout_s=2)


def test_jobs_that_succeed_are_in_the_books_to_the_token_and_waste_nothing(stage, worker):
    stage.ended(*[stage.admit(max_tokens=words) for words in (1, 7, 30)])
    assert store_computed(stage) == 3 * 4 + 1 + 7 + 30
    assert sum_of(stage, "wasted||") == 0
    agree(stage, worker)


def test_what_is_canceled_in_mid_answer_is_waste_to_the_token(stage, worker):
    job_id = stage.admit(max_tokens=3_000)
    stage.speaks(job_id)
    assert stage.store.cancel(job_id) is CancelAnswer.REQUESTED
    (view,) = stage.ended(job_id)
    assert sum_of(stage, "wasted||canceled") == 4 + view.usage.completion_tokens == engine_computed(worker)


def test_of_a_prompt_that_was_not_computed_nothing_is_in_the_books(stage, worker):
    job_id = stage.admit(**LONG)
    stage.running(job_id)
    stage.store.cancel(job_id)
    (view,) = stage.ended(job_id)
    assert (view.state, view.usage.prompt_tokens) == (JobState.CANCELED, 100)
    assert (engine_computed(worker), store_computed(stage), sum_of(stage, "wasted||")) == (0, 0, 0)
    assert int(stage.client.hget("penstock:tenant:blue", "service_mwt")) == 0


def test_a_job_that_ends_in_the_queue_costs_nothing(stage, worker):
    long = [stage.admit("long", max_tokens=1_000) for _ in range(4)]
    stage.running(*long)
    late, gone = stage.admit(deadline_ms=300), stage.admit()
    stage.store.cancel(gone)
    stage.ended(late, gone)
    for job_id in long:
        stage.store.cancel(job_id)
    stage.ended(*long)
    assert sum_of(stage, "wasted|blue||") == 0
    agree(stage, worker)


def test_jobs_that_end_in_every_way_are_in_the_books_to_the_token(stage, worker):
    """Succeeded, canceled, late in prompt and answer, superseded, abandoned: waste is what did not succeed."""
    ill = [
        stage.admit("late", deadline_ms=300, **LONG),
        stage.admit("late", deadline_ms=400, max_tokens=1_000),
        stage.admit("rash", supersede_digest="draft", max_tokens=1_000),
        stage.admit("gone", poll_grace_ms=400, max_tokens=1_000),
        stage.admit("sorry", max_tokens=1_000),
    ]
    well = [stage.admit(max_tokens=5) for _ in range(6)]
    stage.speaks(ill[2])
    well.append(stage.admit("rash", supersede_digest="draft", max_tokens=5))
    stage.speaks(ill[4])
    stage.store.cancel(ill[4])
    views = stage.ended(*ill)
    assert [view.stage for view in views[:2]] == ["prefill", "decode"]
    assert [view.code for view in views] == [
        "deadline_exceeded",
        "deadline_exceeded",
        "superseded",
        "abandoned",
        "canceled",
    ]
    assert {view.state for view in stage.ended(*well)} == {JobState.SUCCEEDED}
    agree(stage, worker)
    used = 4 * len(well) + 5 * len(well)
    assert sum_of(stage, "wasted||") == store_computed(stage) - used > 0
    assert sum_of(stage, "wasted|gone||abandoned") == sum_of(stage, "wasted|gone||") > 0


def told_so_far(stage: Stage, job_id: str) -> int:
    """Tokens of the job's answer that its stream has been told."""
    entries = stage.client.xrange(f"penstock:events:{job_id}")
    return max((int(fields[b"tokens"]) for _, fields in entries if fields[b"type"] == b"token"), default=0)


def test_what_was_computed_for_a_job_that_another_worker_took_is_in_the_books_as_done_twice(stage):
    ghost = stage.worker(**SLOW)
    job_id = stage.admit(max_tokens=150)
    stage.speaks(job_id)
    ghost.pause()
    other = stage.worker(**SLOW)
    wait_for(lambda: stage.job(job_id).attempts == 2, "the other worker to take over")
    ghost.resume()
    stage.ended(job_id)
    wait_for(
        lambda: engine_computed(ghost) + engine_computed(other) == store_computed(stage),
        "the books to agree",
        timeout_s=5,
    )
    assert sum_of(stage, "wasted||") == sum_of(stage, "wasted|blue||retried") == engine_computed(ghost) > 4


def test_what_was_computed_before_a_drain_gave_the_job_back_is_in_the_books_as_done_twice(stage):
    worker = stage.worker(**SLOW, PENSTOCK_DRAIN_GRACE_MS="200")
    job_id = stage.admit(max_tokens=1_000)
    stage.speaks(job_id)
    worker.terminate()
    worker.exit_code()
    assert stage.job(job_id).state is JobState.QUEUED
    told, retried = told_so_far(stage, job_id), sum_of(stage, "wasted|blue||retried")
    assert 4 + told <= retried == store_computed(stage)
    # What was generated and not told any more: some ticks' worth, at 100 words a second.
    assert retried - 4 - told < 30
    stage.store.cancel(job_id)
