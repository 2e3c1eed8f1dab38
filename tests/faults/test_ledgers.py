"""Tests that the store's token counters equal the engine's own counters exactly, as long as no worker is killed."""

from datetime import timedelta

import pytest

from shared.accounts.usage import UsageRecords, sum_by
from shared.jobs.job import JobView, Usage
from shared.jobs.states import JobState
from shared.store.replies import CancelAnswer
from tests.support.processes import Stage, wait_for

SLOW = {"PENSTOCK_MAX_BATCH_SIZE": "4", "PENSTOCK_SIM_PREFILL_TPS": "200", "PENSTOCK_WORKER_LISTEN": "127.0.0.1:0"}
KINDS = ("prompt", "completion", "recomputed")
#: A prompt that takes half a second.
LONG = {"payload": {"prompt": "word " * 100}, "prompt_tokens": 100}


@pytest.fixture
def worker(stage):
    """A worker with four slots, 200 prompt words and 100 answer words a second, and its metrics on a port."""
    return stage.worker(**SLOW)


def sum_of(stage: Stage, *names: str) -> int:
    """Sum the store's counters by the beginning and the end of their names: `wasted||canceled` covers all tenants."""
    stats = stage.store.snapshot(stats=True).stats
    return sum(
        count
        for field, count in stats.items()
        if any(field.startswith(name.split("||")[0] + "|") and field.endswith(name.split("||")[1]) for name in names)
    )


def engine_computed(worker) -> int:
    """Return the number of tokens that the engine has computed by its own counters, also those computed again."""
    return int(sum(worker.figure(f"penstock_worker_{kind}_tokens_total") for kind in KINDS))


def store_computed(stage: Stage) -> int:
    """Return the number of computed tokens by the store's counters."""
    return sum_of(stage, "tokens||prompt", "tokens||completion") - sum_of(stage, "tokens||cached")


def wait_until_equal(stage: Stage, worker) -> None:
    """Wait until both counts are equal; the last step of a canceled job may still be running."""
    wait_for(lambda: engine_computed(worker) == store_computed(stage), "both counts to be equal")


def assert_usage_is_what_clients_were_told(stage: Stage, *views: JobView) -> None:
    """Compare the usage of the last two days, if midnight has just passed, with the jobs' own token counts."""
    book = UsageRecords(stage.client)
    today = book.today()
    sums = sum_by(("model",), book.read([today - timedelta(days=1), today]))["sim",]
    told = [view.usage or Usage() for view in views]
    assert sums.requests == len(views)
    assert sums.succeeded == sum(view.state is JobState.SUCCEEDED for view in views)
    assert sums.prompt_tokens == sum(usage.prompt_tokens for usage in told)
    assert sums.completion_tokens == sum(usage.completion_tokens for usage in told)


def test_the_tokens_of_succeeded_jobs_are_counted_exactly_and_none_as_wasted(stage, worker):
    stage.ended(*[stage.admit(max_tokens=words) for words in (1, 7, 30)])
    assert store_computed(stage) == 3 * 4 + 1 + 7 + 30
    assert sum_of(stage, "wasted||") == 0
    wait_until_equal(stage, worker)


def test_the_tokens_of_a_job_canceled_during_its_answer_are_counted_exactly_as_wasted(stage, worker):
    job_id = stage.admit(max_tokens=3_000)
    stage.wait_for_text(job_id)
    assert stage.store.cancel(job_id) is CancelAnswer.REQUESTED
    (view,) = stage.ended(job_id)
    assert sum_of(stage, "wasted||canceled") == 4 + view.usage.completion_tokens == engine_computed(worker)


def test_a_prompt_that_was_not_computed_is_not_counted(stage, worker):
    job_id = stage.admit(**LONG)
    stage.wait_until_running(job_id)
    stage.store.cancel(job_id)
    (view,) = stage.ended(job_id)
    assert (view.state, view.usage.prompt_tokens) == (JobState.CANCELED, 0)
    assert (engine_computed(worker), store_computed(stage), sum_of(stage, "wasted||")) == (0, 0, 0)
    assert int(stage.client.hget("penstock:tenant:blue", "s|sim")) == 0


def test_a_job_that_ends_in_the_queue_wastes_no_tokens(stage, worker):
    long = [stage.admit("long", max_tokens=1_000) for _ in range(4)]
    stage.wait_until_running(*long)
    # Batch jobs, because nobody's job is paused for them.
    expiring, canceled = stage.admit(deadline_ms=300, priority=-1), stage.admit(priority=-1)
    stage.store.cancel(canceled)
    stage.ended(expiring, canceled)
    for job_id in long:
        stage.store.cancel(job_id)
    stage.ended(*long)
    assert sum_of(stage, "wasted|blue||") == 0
    wait_until_equal(stage, worker)


def test_the_tokens_of_jobs_with_every_kind_of_end_are_counted_exactly(stage, worker):
    """The ends are success, cancel, deadline in prefill and in decode, supersede, and abandonment."""
    unsuccessful = [
        # The first prompt takes three seconds, and the second answer ten.
        stage.admit("late", deadline_ms=1_500, payload={"prompt": "word " * 600}, prompt_tokens=600),
        stage.admit("late", deadline_ms=5_000, max_tokens=1_000),
        stage.admit("rash", supersede_digest="draft", max_tokens=1_000),
        stage.admit("gone", poll_grace_ms=3_000, max_tokens=1_000),
        stage.admit("sorry", max_tokens=1_000),
    ]
    successful = [stage.admit(max_tokens=5) for _ in range(6)]
    stage.wait_for_text(unsuccessful[2])
    successful.append(stage.admit("rash", supersede_digest="draft", max_tokens=5))
    stage.wait_for_text(unsuccessful[4])
    stage.store.cancel(unsuccessful[4])
    views = stage.ended(*unsuccessful)
    assert [view.stage for view in views[:2]] == ["prefill", "decode"]
    assert [view.code for view in views] == [
        "deadline_exceeded",
        "deadline_exceeded",
        "superseded",
        "abandoned",
        "canceled",
    ]
    assert {view.state for view in stage.ended(*successful)} == {JobState.SUCCEEDED}
    wait_until_equal(stage, worker)
    used = 4 * len(successful) + 5 * len(successful)
    assert sum_of(stage, "wasted||") == store_computed(stage) - used > 0
    assert sum_of(stage, "wasted|gone||abandoned") == sum_of(stage, "wasted|gone||") > 0
    assert_usage_is_what_clients_were_told(stage, *views, *stage.ended(*successful))


def published_tokens(stage: Stage, job_id: str) -> int:
    """Return the number of answer tokens that the job's event stream contains."""
    entries = stage.client.xrange(f"penstock:events:{job_id}")
    return max((int(fields[b"tokens"]) for _, fields in entries if fields[b"type"] == b"token"), default=0)


def test_tokens_computed_twice_for_a_job_that_another_worker_took_over_are_counted_as_retried(stage):
    suspended = stage.worker(**SLOW)
    job_id = stage.admit(max_tokens=150)
    stage.wait_for_text(job_id)
    suspended.pause()
    other = stage.worker(**SLOW)
    wait_for(lambda: stage.job(job_id).attempts == 2, "the other worker to take over")
    suspended.resume()
    stage.ended(job_id)
    wait_for(
        lambda: engine_computed(suspended) + engine_computed(other) == store_computed(stage), "both counts to be equal"
    )
    assert sum_of(stage, "wasted||") == sum_of(stage, "wasted|blue||retried") == store_computed(stage) - 4 - 150
    # The other worker computed the prompt and the kept tokens but the last again; the first, some tokens beyond them.
    assert other.figure("penstock_worker_recomputed_tokens_total") >= 4
    assert_usage_is_what_clients_were_told(stage, stage.job(job_id))


def test_tokens_that_a_drain_could_not_keep_are_counted_as_retried(stage):
    worker = stage.worker(**SLOW, PENSTOCK_DRAIN_GRACE_MS="200")
    job_id = stage.admit(max_tokens=1_000)
    stage.wait_for_text(job_id)
    worker.terminate()
    worker.exit_code()
    assert stage.job(job_id).state is JobState.QUEUED
    published, retried = published_tokens(stage, job_id), sum_of(stage, "wasted|blue||retried")
    assert published > 0
    # The tokens generated but not published are those of a few ticks at 100 words a second. The others are kept.
    assert retried == store_computed(stage) < 30
    stage.store.cancel(job_id)
