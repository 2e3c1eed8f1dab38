"""Tests of the job loop of one worker, in one thread, with a real store, an engine over the sim and a manual clock."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import redis

from shared.errors import StoreUnavailable
from shared.jobs.answer_ids import PackedIds
from shared.jobs.job import ClaimRef
from shared.jobs.states import JobState
from shared.store import scripts
from shared.store.replies import Appended
from tests.support.one_worker import WORKER, FlakyStore, admit_job, make_worker, state_and_attempts


@pytest.fixture
def flaky(redis_client) -> FlakyStore:
    return FlakyStore(redis_client)


def test_equal_jobs_of_three_tenants_take_exact_turns_in_one_slot(flaky):
    worker = make_worker(flaky)
    ids = {admit_job(flaky, tenant, max_tokens=3): tenant for tenant in "aaabbbccc"}
    worker.run_until(worker.all_ended)
    views = sorted((flaky.touch(job_id) for job_id in ids), key=lambda view: (view.first_claim_ms, view.ended_ms))
    assert "".join(view.tenant for view in views) == "abcabcabc"


def test_the_thread_that_hears_of_a_job_claims_it_unless_a_pass_runs(flaky):
    worker = make_worker(flaky)
    first = admit_job(flaky, max_tokens=2)
    worker.job_loop.claim_now()
    assert [held.id for held in worker.claimed_jobs.held()] == [first]
    worker.run_until(worker.all_ended)
    second = admit_job(flaky, max_tokens=2)
    worker.job_loop.wake.clear()
    with worker.job_loop._passing:
        worker.job_loop.claim_now()
    assert state_and_attempts(flaky, second) == (JobState.QUEUED, 0)
    assert worker.job_loop.wake.is_set()
    worker.run_until(worker.all_ended)


def test_a_fault_of_a_pass_on_the_thread_that_hears_of_a_job_is_left_to_the_duty_of_the_passes(flaky, monkeypatch):
    worker = make_worker(flaky)
    job_id = admit_job(flaky, max_tokens=2)
    with monkeypatch.context() as broken:
        broken.setattr(worker.delivery, "one_pass", lambda: 1 / 0)
        worker.job_loop.wake.clear()
        worker.job_loop.claim_now()
        assert worker.job_loop.wake.is_set()
        with pytest.raises(ZeroDivisionError):
            worker.job_loop.one_pass()
    worker.run_until(worker.all_ended)
    assert state_and_attempts(flaky, job_id) == (JobState.SUCCEEDED, 1)


def test_a_slot_takes_no_new_job_before_its_previous_job_is_settled(flaky):
    worker = make_worker(flaky)
    first, second = admit_job(flaky, max_tokens=2), admit_job(flaky, max_tokens=2)
    worker.run_until(lambda: len(worker.claimed_jobs) == 1)
    while worker.engine.free_capacity().slots == 0:
        worker.engine.step()
    assert not worker.claimer.has_free_slot
    assert state_and_attempts(flaky, second) == (JobState.QUEUED, 0)
    worker.run_until(worker.all_ended)
    assert state_and_attempts(flaky, first) == state_and_attempts(flaky, second) == (JobState.SUCCEEDED, 1)


def test_without_a_store_the_engine_continues_and_jobs_are_settled_in_order_when_it_is_back(flaky):
    worker = make_worker(flaky, PENSTOCK_MAX_BATCH_SIZE="3")
    long, short, middle = (
        admit_job(flaky, tenant, max_tokens=length) for tenant, length in (("a", 30), ("b", 10), ("c", 20))
    )
    behind = admit_job(flaky, "d", max_tokens=5)
    worker.run_until(lambda: len(worker.claimed_jobs) == 3)
    flaky.disconnected = True
    while worker.engine.free_capacity().slots < 3:
        with contextlib.suppress(StoreUnavailable):
            worker.job_loop.one_pass()
        worker.engine.step()
    assert worker.engine.stats.completion_tokens == 60
    assert len(worker.claimed_jobs) == 3
    flaky.calls.clear()
    flaky.disconnected = False
    assert state_and_attempts(flaky, behind) == (JobState.QUEUED, 0)
    worker.run_until(worker.all_ended)
    sent = [call for call in flaky.calls if call[0] in {"settle", "claim"}]
    assert sent[:5] == [("settle", short), ("settle", middle), ("settle", long), ("claim", ""), ("settle", behind)]
    assert {state_and_attempts(flaky, job_id) for job_id in (long, short, middle, behind)} == {(JobState.SUCCEEDED, 1)}


def test_a_claim_whose_answer_was_lost_is_repeated_and_returns_the_same_jobs(flaky):
    worker = make_worker(flaky, PENSTOCK_MAX_BATCH_SIZE="4")
    ids = [admit_job(flaky, tenant, max_tokens=2) for tenant in "abc"]
    flaky.lose_answer_of = "claim"
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    assert worker.claimer.claim_pending
    assert not len(worker.claimed_jobs)
    late = admit_job(flaky, "d", max_tokens=2)
    worker.job_loop.one_pass()
    assert sorted(held.id for held in worker.claimed_jobs.held()) == sorted(ids)
    worker.run_until(worker.all_ended)
    assert {state_and_attempts(flaky, job_id) for job_id in [*ids, late]} == {(JobState.SUCCEEDED, 1)}


def test_a_settle_whose_answer_was_lost_is_repeated_and_counts_once(flaky):
    worker = make_worker(flaky)
    job_id = admit_job(flaky, max_tokens=2)
    flaky.lose_answer_of = "settle"
    with pytest.raises(StoreUnavailable):
        worker.run_until(worker.all_ended)
    assert len(worker.claimed_jobs) == 1
    worker.job_loop.one_pass()
    assert not len(worker.claimed_jobs)
    assert [call for call in flaky.calls if call[0] == "settle"] == [("settle", job_id)] * 2
    assert state_and_attempts(flaky, job_id) == (JobState.SUCCEEDED, 1)
    assert flaky.snapshot(stats=True).stats["ended|succeeded"] == 1


def test_the_end_of_a_job_and_the_claim_for_its_slot_are_one_packet(flaky):
    worker = make_worker(flaky)
    for _ in range(3):
        admit_job(flaky, max_tokens=2)
    worker.run_until(worker.all_ended)
    assert flaky.packets == [["settle", "claim"]] * 3
    assert [script for script, _ in flaky.calls].count("claim") == 4


@pytest.mark.parametrize("lost", ["settle", "claim"])
def test_an_end_and_a_claim_whose_answers_were_lost_are_repeated_together(flaky, lost):
    worker = make_worker(flaky)
    ids = [admit_job(flaky, max_tokens=2) for _ in range(2)]
    worker.job_loop.one_pass()
    flaky.lose_answer_of = lost
    with pytest.raises(StoreUnavailable):
        worker.run_until(worker.all_ended)
    assert flaky.touch(ids[0]).state == JobState.SUCCEEDED
    assert [held.id for held in worker.claimed_jobs.held()] == ids[:1]
    worker.run_until(worker.all_ended)
    assert flaky.packets[:2] == [["settle", "claim"]] * 2
    assert [state_and_attempts(flaky, job_id) for job_id in ids] == [(JobState.SUCCEEDED, 1)] * 2


def test_a_claim_that_fails_beside_the_end_of_a_job_does_not_keep_the_job(flaky, monkeypatch):
    worker = make_worker(flaky)
    ids = [admit_job(flaky, max_tokens=2) for _ in range(2)]
    worker.job_loop.one_pass()
    argv = scripts.Script.argv

    def too_few(script: scripts.Script, **given: Any) -> list[scripts.Value]:
        return argv(script, **given)[: 2 if script.header.name == "claim" else None]

    with monkeypatch.context() as broken:
        broken.setattr(scripts.Script, "argv", too_few)
        with pytest.raises(redis.ResponseError):
            worker.run_until(worker.all_ended)
        assert flaky.packets == [["settle", "claim"]]
        assert (len(worker.claimed_jobs), worker.delivery.has_unsent) == (0, False)
    worker.run_until(worker.all_ended)
    assert [state_and_attempts(flaky, job_id) for job_id in ids] == [(JobState.SUCCEEDED, 1)] * 2


def test_a_worker_that_ends_settles_its_jobs_without_a_claim(flaky):
    worker = make_worker(flaky)
    ids = [admit_job(flaky, max_tokens=2) for _ in range(2)]
    worker.job_loop.one_pass()
    worker.claimer.paused = True
    worker.run_until(lambda: len(worker.claimed_jobs) == 0)
    assert flaky.packets == [["settle"]]
    assert state_and_attempts(flaky, ids[1]) == (JobState.QUEUED, 0)
    worker.claimer.paused = False
    worker.claimer.expect_work()
    worker.run_until(worker.all_ended)


def test_a_job_whose_claim_is_answered_after_the_drain_began_is_released(flaky):
    worker = make_worker(flaky)
    job_id = admit_job(flaky)
    flaky.lose_answer_of = "claim"
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    assert state_and_attempts(flaky, job_id) == (JobState.RUNNING, 1)
    worker.claimer.closed = True
    worker.job_loop.one_pass()
    assert state_and_attempts(flaky, job_id) == (JobState.QUEUED, 0)
    assert not worker.claimer.claim_pending


def test_text_of_a_job_is_sent_at_most_every_50_ms_on_a_tick_shared_with_other_jobs(flaky):
    """The worker has two slots, and each generates a word every 10 ms."""
    worker = make_worker(
        flaky,
        PENSTOCK_MAX_BATCH_SIZE="2",
        PENSTOCK_SIM_DECODE_TPS="100",
        PENSTOCK_SIM_PREFILL_TPS="1e6",
        PENSTOCK_TEXT_INTERVAL_MS="50",
    )
    ids = [admit_job(flaky, tenant, max_tokens=40) for tenant in "ab"]
    sent_s: dict[str, list[float]] = {job_id: [] for job_id in ids}
    calls = []
    append = flaky.append

    def recording_append(
        chunks: Sequence[tuple[ClaimRef, str, int]], ids: Mapping[str, PackedIds], **named: bool
    ) -> Appended:
        calls.append(len(chunks))
        for held, _, _ in chunks:
            sent_s[held.id].append(worker.clock.monotonic())
        return append(chunks, ids, **named)

    flaky.append = recording_append
    worker.run_until(worker.all_ended)
    for moments in sent_s.values():
        gaps = [after - before for before, after in itertools.pairwise(moments)]
        assert len(moments) >= 7
        # The first text is sent at once, and the last one together with the end.
        assert min(gaps[1:-1]) >= 0.045
        assert max(gaps) <= 0.065
    assert sum(size == 2 for size in calls) >= 5
    for job_id in ids:
        events = flaky.read_events({job_id: "0"}, block_ms=1)[job_id]
        assert "".join(fields.get("text", "") for _, fields in events) == flaky.touch(job_id).text


def test_text_whose_send_was_not_answered_is_sent_again_before_the_end_of_its_job(flaky):
    worker = make_worker(flaky)
    job_id = admit_job(flaky, max_tokens=6)
    worker.run_until(lambda: worker.engine.stats.completion_tokens == 1)
    flaky.disconnected = True
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    while worker.engine.free_capacity().slots == 0:
        worker.engine.step()
    flaky.disconnected = False
    worker.run_until(worker.all_ended)
    events = flaky.read_events({job_id: "0"}, block_ms=1)[job_id]
    assert [fields["type"] for _, fields in events] == ["started", "token", "token", "ended"]
    assert "".join(fields.get("text", "") for _, fields in events) == flaky.touch(job_id).text


def test_sending_text_for_a_lost_lease_drops_the_sequence(flaky):
    worker = make_worker(flaky)
    job_id = admit_job(flaky, max_tokens=1_000)
    worker.run_until(lambda: worker.engine.stats.completion_tokens > 3)
    flaky.release(WORKER, worker.claimed_jobs.held())
    worker.claimer.paused = True
    worker.run_until(lambda: not len(worker.claimed_jobs))
    worker.run_until(lambda: worker.engine.free_capacity().slots == 1)
    assert state_and_attempts(flaky, job_id) == (JobState.QUEUED, 0)
    flaky.cancel(job_id)


def test_a_job_that_the_worker_lost_and_claims_again_runs_under_the_new_claim(flaky):
    worker = make_worker(flaky, PENSTOCK_MAX_BATCH_SIZE="2")
    job_id = admit_job(flaky, max_tokens=10)
    worker.run_until(lambda: len(worker.claimed_jobs) == 1)
    old = worker.claimed_jobs.held()
    flaky.release(WORKER, old)
    worker.claimer.expect_work()
    worker.job_loop.one_pass()
    new = worker.claimed_jobs.held()
    assert [held.id for held in new] == [job_id]
    assert new != old
    assert worker.heartbeat() == []
    worker.run_until(worker.all_ended)
    assert state_and_attempts(flaky, job_id) == (JobState.SUCCEEDED, 1)
    assert worker.engine.free_capacity().slots == 2


def test_a_cancel_that_arrives_before_the_claims_answer_cancels_the_job(flaky):
    worker = make_worker(flaky)
    job_id = admit_job(flaky, max_tokens=1_000)
    flaky.lose_answer_of = "claim"
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    flaky.cancel(job_id)
    canceled_ids = flaky.wait_for_work(WORKER, "", timeout_s=1).canceled
    assert [worker.claimed_jobs.request_cancel(job_id) for job_id in canceled_ids] == [None]
    worker.run_until(worker.all_ended)
    assert state_and_attempts(flaky, job_id) == (JobState.CANCELED, 1)
    assert worker.engine.stats.completion_tokens <= 1


def test_a_worker_without_a_free_slot_sends_no_claims(flaky):
    worker = make_worker(flaky)
    ids = [admit_job(flaky, max_tokens=50) for _ in range(2)]
    worker.run_until(lambda: len(worker.claimed_jobs) == 1)
    flaky.calls.clear()
    worker.run_until(lambda: worker.engine.stats.completion_tokens == 40)
    assert {script for script, _ in flaky.calls} == {"append"}
    worker.run_until(worker.all_ended)
    assert {state_and_attempts(flaky, job_id)[0] for job_id in ids} == {JobState.SUCCEEDED}


def test_a_job_succeeds_even_if_recording_its_statistics_fails(flaky):
    worker = make_worker(flaky)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    worker.claimer.starts.record_prompt = fail
    job_id = admit_job(flaky, max_tokens=2)
    worker.run_until(worker.all_ended)
    assert state_and_attempts(flaky, job_id) == (JobState.SUCCEEDED, 1)
