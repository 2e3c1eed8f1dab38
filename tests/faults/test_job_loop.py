"""The rounds of one worker in one thread, with a real store, a real engine over sim, and a clock held here."""

import contextlib
import itertools
from collections.abc import Sequence

import pytest

from shared.errors import StoreUnavailable
from shared.jobs.job import Held
from shared.jobs.states import JobState
from tests.support.one_worker import WORKER, Flaky, ask, make, state


@pytest.fixture
def flaky(redis_client) -> Flaky:
    return Flaky(redis_client)


def test_equal_jobs_of_three_tenants_take_exact_turns_in_one_slot(flaky):
    worker = make(flaky)
    ids = {ask(flaky, tenant, max_tokens=3): tenant for tenant in "aaabbbccc"}
    worker.go(worker.all_ended)
    views = sorted((flaky.touch(job_id) for job_id in ids), key=lambda view: (view.first_claim_ms, view.ended_ms))
    assert "".join(view.tenant for view in views) == "abcabcabc"


def test_a_slot_takes_no_new_job_before_the_end_of_its_former_one_is_written(flaky):
    worker = make(flaky)
    first, second = ask(flaky, max_tokens=2), ask(flaky, max_tokens=2)
    worker.go(lambda: len(worker.claimed_jobs) == 1)
    while worker.engine.room().slots == 0:
        worker.engine.step()
    assert not worker.claimer.has_room
    assert state(flaky, second) == (JobState.QUEUED, 0)
    worker.go(worker.all_ended)
    assert state(flaky, first) == state(flaky, second) == (JobState.SUCCEEDED, 1)


def test_without_a_store_the_engine_goes_on_and_ends_are_told_in_their_order_when_it_is_back(flaky):
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="3")
    long, short, middle = (ask(flaky, tenant, max_tokens=most) for tenant, most in (("a", 30), ("b", 10), ("c", 20)))
    behind = ask(flaky, "d", max_tokens=5)
    worker.go(lambda: len(worker.claimed_jobs) == 3)
    flaky.away = True
    while worker.engine.room().slots < 3:
        with contextlib.suppress(StoreUnavailable):
            worker.job_loop.one_pass()
        worker.engine.step()
    assert worker.engine.stats.completion_tokens == 60
    assert len(worker.claimed_jobs) == 3
    flaky.calls.clear()
    flaky.away = False
    assert state(flaky, behind) == (JobState.QUEUED, 0)
    worker.go(worker.all_ended)
    told = [call for call in flaky.calls if call[0] in {"settle", "claim"}]
    assert told[:5] == [("settle", short), ("settle", middle), ("settle", long), ("claim", ""), ("settle", behind)]
    assert {state(flaky, job_id) for job_id in (long, short, middle, behind)} == {(JobState.SUCCEEDED, 1)}


def test_a_claim_whose_answer_was_lost_is_asked_again_and_gives_the_same_jobs(flaky):
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="4")
    ids = [ask(flaky, tenant, max_tokens=2) for tenant in "abc"]
    flaky.swallow = "claim"
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    assert worker.claimer.asking
    assert not len(worker.claimed_jobs)
    late = ask(flaky, "d", max_tokens=2)
    worker.job_loop.one_pass()
    assert sorted(held.id for held in worker.claimed_jobs.named()) == sorted(ids)
    worker.go(worker.all_ended)
    assert {state(flaky, job_id) for job_id in [*ids, late]} == {(JobState.SUCCEEDED, 1)}


def test_a_settle_whose_answer_was_lost_counts_once(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=2)
    flaky.swallow = "settle"
    with pytest.raises(StoreUnavailable):
        worker.go(worker.all_ended)
    assert len(worker.claimed_jobs) == 1
    worker.job_loop.one_pass()
    assert not len(worker.claimed_jobs)
    assert [call for call in flaky.calls if call[0] == "settle"] == [("settle", job_id)] * 2
    assert state(flaky, job_id) == (JobState.SUCCEEDED, 1)
    assert flaky.snapshot().stats["ended|succeeded"] == 1


def test_a_claim_that_is_answered_after_the_drain_began_is_given_back(flaky):
    worker = make(flaky)
    job_id = ask(flaky)
    flaky.swallow = "claim"
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    assert state(flaky, job_id) == (JobState.RUNNING, 1)
    worker.claimer.closed = True
    worker.job_loop.one_pass()
    assert state(flaky, job_id) == (JobState.QUEUED, 0)
    assert not worker.claimer.asking


def test_the_first_text_goes_out_at_once_and_then_no_oftener_than_every_50_ms(flaky):
    """Two slots, a word every 10 ms."""
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="2", PENSTOCK_SIM_DECODE_TPS="100", PENSTOCK_SIM_PREFILL_TPS="1e6")
    ids = [ask(flaky, tenant, max_tokens=40) for tenant in "ab"]
    told: dict[str, list[float]] = {job_id: [] for job_id in ids}
    calls = []
    append = flaky.append

    def watched(chunks: Sequence[tuple[Held, str, int]]) -> list[str]:
        calls.append(len(chunks))
        for held, _, _ in chunks:
            told[held.id].append(worker.clock.monotonic())
        return append(chunks)

    flaky.append = watched
    worker.go(worker.all_ended)
    for moments in told.values():
        gaps = [after - before for before, after in itertools.pairwise(moments)]
        assert len(moments) >= 7
        # The last call is the end's.
        assert min(gaps[:-1]) >= 0.045
        assert max(gaps) <= 0.115
    assert sum(size == 2 for size in calls) >= 5
    for job_id in ids:
        events = flaky.read_events({job_id: "0"}, block_ms=1)[job_id]
        assert "".join(fields.get("text", "") for _, fields in events) == flaky.touch(job_id).text


def test_text_that_was_in_doubt_when_its_job_ended_is_told_before_the_end(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=6)
    worker.go(lambda: worker.engine.stats.completion_tokens == 1)
    flaky.away = True
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    while worker.engine.room().slots == 0:
        worker.engine.step()
    flaky.away = False
    worker.go(worker.all_ended)
    events = flaky.read_events({job_id: "0"}, block_ms=1)[job_id]
    assert [fields["type"] for _, fields in events] == ["started", "token", "token", "ended"]
    assert "".join(fields.get("text", "") for _, fields in events) == flaky.touch(job_id).text


def test_text_for_a_lease_that_was_lost_drops_the_sequence(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=1_000)
    worker.go(lambda: worker.engine.stats.completion_tokens > 3)
    flaky.release(WORKER, worker.claimed_jobs.named())
    worker.claimer.paused = True
    worker.go(lambda: not len(worker.claimed_jobs))
    worker.go(lambda: worker.engine.room().slots == 1)
    assert state(flaky, job_id) == (JobState.QUEUED, 0)
    flaky.cancel(job_id)


def test_a_job_that_comes_back_to_the_worker_that_lost_it_runs_as_its_new_attempt(flaky):
    worker = make(flaky, PENSTOCK_MAX_BATCH_SIZE="2")
    job_id = ask(flaky, max_tokens=10)
    worker.go(lambda: len(worker.claimed_jobs) == 1)
    old = worker.claimed_jobs.named()
    flaky.release(WORKER, old)
    worker.claimer.ring()
    worker.job_loop.one_pass()
    new = worker.claimed_jobs.named()
    assert [held.id for held in new] == [job_id]
    assert new != old
    assert worker.beat() == []
    worker.go(worker.all_ended)
    assert state(flaky, job_id) == (JobState.SUCCEEDED, 1)
    assert worker.engine.room().slots == 2


def test_a_cancel_that_overtakes_its_claims_answer_is_kept_for_it(flaky):
    worker = make(flaky)
    job_id = ask(flaky, max_tokens=1_000)
    flaky.swallow = "claim"
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    flaky.cancel(job_id)
    _, heard = flaky.wait_for_work(WORKER, "", timeout_s=1)
    assert [worker.claimed_jobs.ask_cancel(job_id) for job_id in heard] == [None]
    worker.go(worker.all_ended)
    assert state(flaky, job_id) == (JobState.CANCELED, 1)
    assert worker.engine.stats.completion_tokens <= 1


def test_a_full_worker_asks_for_nothing(flaky):
    worker = make(flaky)
    ids = [ask(flaky, max_tokens=50) for _ in range(2)]
    worker.go(lambda: len(worker.claimed_jobs) == 1)
    flaky.calls.clear()
    worker.go(lambda: worker.engine.stats.completion_tokens == 40)
    assert {script for script, _ in flaky.calls} == {"append"}
    worker.go(worker.all_ended)
    assert {state(flaky, job_id)[0] for job_id in ids} == {JobState.SUCCEEDED}


def test_a_job_whose_statistics_fail_runs_all_the_same(flaky):
    worker = make(flaky)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    worker.claimer.learn = broken
    job_id = ask(flaky, max_tokens=2)
    worker.go(worker.all_ended)
    assert state(flaky, job_id) == (JobState.SUCCEEDED, 1)
