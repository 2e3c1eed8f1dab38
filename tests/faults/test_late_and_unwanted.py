"""Tests of deadlines and cancels of jobs that are queued, in prefill, or in decode (faults 29 and 30)."""

import time

import pytest

from shared.jobs.outcomes import EndCode
from shared.jobs.states import JobState
from shared.store.replies import CancelAnswer
from tests.support.processes import Stage, in_time, wait_for

#: Allowed delay of an expiry: 250 ms of the reaper, and a reserve.
LATE_S = 0.75
#: A worker counts a deadline from when it sent the claim, so a job may end early by the claim's round trip, which takes
#: a few milliseconds, and much longer on a busy machine.
EARLY_MS = 400


def expired(stage: Stage, job_id: str, *, stage_name: str) -> tuple[float, float]:
    """Check that the job expired in this stage, not before its deadline; return how late it was, and the limit."""
    (view,) = stage.ended(job_id)
    assert (view.state, view.code, view.stage) == (JobState.EXPIRED, EndCode.DEADLINE_EXCEEDED, stage_name)
    assert view.ended_ms - view.deadline_at_ms >= -EARLY_MS
    return (view.ended_ms - view.deadline_at_ms) / 1_000, LATE_S


@pytest.fixture
def one_slot(stage):
    """A worker with one slot, taken by a long job. It is not paused for the job of a tenant that has had nothing."""
    worker = stage.worker(PENSTOCK_MAX_BATCH_SIZE="1", PENSTOCK_PREEMPTION="off")
    job_id = stage.admit("long", max_tokens=3_000)
    stage.wait_until_running(job_id)
    yield worker
    stage.store.cancel(job_id)


@pytest.mark.usefixtures("one_slot")
def test_a_queued_job_expires_at_its_deadline_and_never_reaches_the_engine(stage):
    def attempt():
        queued = stage.admit(deadline_ms=500)
        late = expired(stage, queued, stage_name="queue")
        view = stage.job(queued)
        assert view.attempts == 0
        assert view.usage is None
        assert "started" not in stage.event_types(queued)
        return [late]

    in_time(attempt)


@pytest.mark.usefixtures("one_slot")
def test_a_job_at_the_back_of_its_queue_expires_at_its_deadline(stage):
    """Its latest start puts it behind the others in the queue, but its deadline is earlier than theirs."""
    others = [stage.admit(latest_start_ms=100) for _ in range(5)]

    def attempt():
        last = stage.admit(deadline_ms=1_000, latest_start_ms=400)
        assert stage.job(last).position == 6
        return [expired(stage, last, stage_name="queue")]

    in_time(attempt)
    assert {view.state for view in stage.jobs(others)} == {JobState.QUEUED}


def test_a_deadline_between_the_claim_and_the_first_token_expires_the_job_in_prefill(stage):
    stage.worker(PENSTOCK_SIM_PREFILL_TPS="1")

    def attempt():
        # Long enough for a claim on a busy machine, and shorter than the prefill.
        job_id = stage.admit(deadline_ms=1_500)
        late = expired(stage, job_id, stage_name="prefill")
        view = stage.job(job_id)
        assert (view.attempts, view.usage.completion_tokens, view.text) == (1, 0, "")
        return [late]

    in_time(attempt)


def test_a_deadline_during_the_answer_keeps_the_text_so_far_and_frees_the_slot(stage):
    stage.worker(PENSTOCK_MAX_BATCH_SIZE="1")

    def attempt():
        # Long enough for a first token on a busy machine, and much shorter than the answer.
        job_id = stage.admit(deadline_ms=2_500, max_tokens=1_000)
        stage.wait_for_text(job_id)
        after = stage.admit("green")
        late = expired(stage, job_id, stage_name="decode")
        view = stage.job(job_id)
        assert view.finish_reason == "deadline"
        assert 0 < len(view.text.split()) == view.usage.completion_tokens < 1_000
        # A word takes 10 ms, and longer on a busy machine.
        assert 10 * (view.usage.completion_tokens - 20) <= view.usage.decode_ms <= view.ended_ms - view.started_ms
        (green,) = stage.ended(after)
        assert green.state is JobState.SUCCEEDED
        return [late, ((green.started_ms - view.ended_ms) / 1_000, LATE_S)]

    in_time(attempt)


def test_a_job_without_a_first_token_at_its_start_deadline_expires(stage):
    stage.worker(PENSTOCK_SIM_PREFILL_TPS="1")

    def attempt():
        # Long enough for a claim on a busy machine, and much shorter than the prefill.
        (view,) = stage.ended(stage.admit(start_within_ms=1_500))
        assert (view.state, view.stage) == (JobState.EXPIRED, "prefill")
        return [((view.ended_ms - view.admitted_ms) / 1_000, 1.5 + LATE_S)]

    in_time(attempt)


def test_a_cancel_of_a_running_job_reaches_the_engine_without_waiting_for_a_renewal(stage):
    """A renewal comes every five seconds; the median of five cancels is much faster."""
    stage.worker(PENSTOCK_LEASE_MS="15000")
    took_ms = []
    for _ in range(5):
        job_id = stage.admit(max_tokens=3_000)
        stage.wait_for_text(job_id)
        sent_s = time.monotonic()
        assert stage.store.cancel(job_id) is CancelAnswer.REQUESTED
        (view,) = stage.ended(job_id)
        took_ms.append((time.monotonic() - sent_s) * 1_000)
        assert (view.state, view.code, view.finish_reason) == (JobState.CANCELED, EndCode.CANCELED, "canceled")
        assert 0 < view.usage.completion_tokens < 3_000
    assert sorted(took_ms)[2] < 1_500, took_ms


@pytest.mark.usefixtures("one_slot")
def test_a_cancel_of_a_queued_job_ends_it_at_once(stage):
    job_id = stage.admit()
    assert stage.store.cancel(job_id) is CancelAnswer.CANCELED
    view = stage.job(job_id)
    assert (view.state, view.attempts) == (JobState.CANCELED, 0)


def test_a_cancel_while_the_worker_is_suspended_takes_effect_when_it_resumes(stage):
    worker = stage.worker()
    job_id = stage.admit(max_tokens=3_000)
    wait_for(lambda: stage.job(job_id).state is JobState.RUNNING, "the claim")
    worker.pause()
    stage.store.cancel(job_id)
    worker.resume()
    (view,) = stage.ended(job_id)
    assert (view.state, view.attempts) == (JobState.CANCELED, 1)


def test_a_cancel_at_about_the_time_of_the_settle_ends_the_job_once(stage):
    """Jobs of 10 words take 100 ms; each one is canceled a little later than the one before."""
    stage.worker()
    outcomes = {JobState.SUCCEEDED: 0, JobState.CANCELED: 0}
    for i in range(24):
        job_id = stage.admit(max_tokens=10)
        stage.wait_for_text(job_id)
        time.sleep(0.070 + i * 0.002)  # the time of the cancel is what this test varies
        stage.store.cancel(job_id)
        (view,) = stage.ended(job_id)
        outcomes[view.state] += 1
        assert stage.event_types(job_id).count("ended") == 1
    assert sum(outcomes.values()) == 24
    assert stage.stat("ended|succeeded") == outcomes[JobState.SUCCEEDED]
    assert stage.stat("ended|canceled") == outcomes[JobState.CANCELED]
