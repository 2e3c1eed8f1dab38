"""Tests of one worker whose jobs the store pauses in favor of other tenants, in one thread, with a manual clock.

A slot generates one word in 10 ms, so a quantum of 1 s is 100 words.
"""

import contextlib

import pytest

from shared.errors import StoreUnavailable
from shared.jobs.states import JobState
from shared.store import keys
from tests.support.one_worker import WORKER, FlakyStore, OneWorker, admit_job, make_worker, state_and_attempts


@pytest.fixture
def flaky(redis_client) -> FlakyStore:
    return FlakyStore(redis_client)


def a_worker(flaky: FlakyStore, slots: int, **environ: str) -> OneWorker:
    settings = {
        "PENSTOCK_MAX_BATCH_SIZE": str(slots),
        "PENSTOCK_SIM_DECODE_TPS": "100",
        "PENSTOCK_SIM_PREFILL_TPS": "1e6",
        "PENSTOCK_PREEMPTION": "on",
    }
    return make_worker(flaky, **settings | environ)


def words(worker: OneWorker, job_id: str) -> int:
    """Return how many words of the job's answer the engine has generated."""
    return next(seq.completion_tokens for key, seq in worker.engine._by_key.items() if key.id == job_id)


def computing(worker: OneWorker) -> set[str]:
    """Return the ids of the jobs that have a slot in the engine."""
    return {sequence.key.id for sequence in worker.engine._running.values()}


def is_paused(flaky: FlakyStore, job_id: str) -> bool:
    """Return whether the store counts the job as paused."""
    return bool(flaky.client.hget(keys.rq_job(job_id), "penstock_paused_since_ms"))


def check_answer(flaky: FlakyStore, job_id: str, length: int) -> None:
    """Check that the job has the whole answer, as it was streamed, with no word missing and none twice."""
    view = flaky.touch(job_id, quiet=True)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert view.text == "".join(f"w{3 + i} " for i in range(length))
    events = flaky.read_events({job_id: "0"}, block_ms=1)[job_id]
    assert "".join(fields.get("text", "") for _, fields in events) == view.text
    assert [fields["type"] for _, fields in events if fields["type"] != "token"] == ["started", "ended"]


def with_long_answers(flaky: FlakyStore, slots: int, **fields: int) -> tuple[OneWorker, list[str]]:
    """Return a worker whose slots have answers of 400 words of one tenant. Half a quantum of each is generated."""
    worker = a_worker(flaky, slots)
    ids = [admit_job(flaky, "loud", max_tokens=400, **fields) for _ in range(slots)]
    worker.run_until(lambda: worker.engine.stats.completion_tokens >= 50 * slots)
    return worker, ids


def with_a_paused_job(flaky: FlakyStore, slots: int, **fields: int) -> tuple[OneWorker, list[str], str]:
    """Return a worker on which a job of 60 words has taken the slot of one of the long answers."""
    worker, loud = with_long_answers(flaky, slots, **fields)
    quiet = admit_job(flaky, "quiet", max_tokens=60)
    worker.job_loop.contest()
    worker.run_until(lambda: quiet in computing(worker))
    return worker, loud, quiet


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_short_job_takes_the_slot_of_another_tenants_long_answer_which_continues_afterwards(flaky, slots):
    worker, loud = with_long_answers(flaky, slots)
    began_s = worker.clock.monotonic()
    quiet = admit_job(flaky, "quiet", max_tokens=10)
    worker.job_loop.contest()
    worker.run_until(lambda: state_and_attempts(flaky, quiet)[0] is JobState.SUCCEEDED)
    # With one slot the long answer first has its slot for a quantum.
    assert worker.clock.monotonic() - began_s < (1.5 if slots == 1 else 0.3)
    assert [job for job in loud if not is_paused(flaky, job)] == [job for job in loud if job in computing(worker)]
    worker.run_until(worker.all_ended)
    assert worker.engine.stats.pauses == 1
    assert worker.engine.stats.recomputed_tokens == 0
    for job_id in loud:
        check_answer(flaky, job_id, 400)
    check_answer(flaky, quiet, 10)


def test_no_slot_is_free_while_a_job_is_paused(flaky):
    worker, loud, quiet = with_a_paused_job(flaky, 2)
    assert len(worker.claimed_jobs) == 3
    assert worker.claimed_jobs.paused == 1
    while not worker.all_ended():
        worker.job_loop.one_pass()
        worker.engine.step()
        held = len(worker.claimed_jobs)
        assert len(computing(worker)) >= min(2, held) - 1
        if held >= 2 and not worker.delivery._inbox:
            assert len(computing(worker)) == 2
    for job_id in loud:
        check_answer(flaky, job_id, 400)
    check_answer(flaky, quiet, 60)


def test_with_one_tenant_nothing_is_paused_and_the_store_is_called_as_often_as_without_preemption(flaky):
    calls = []
    for preemption in ("off", "on"):
        flaky.client.flushall()
        flaky.calls.clear()
        worker = a_worker(flaky, 2, PENSTOCK_PREEMPTION=preemption)
        for length in (150, 250, 30, 120, 5, 300):
            admit_job(flaky, "loud", max_tokens=length)
        worker.run_until(worker.all_ended)
        assert worker.engine.stats.pauses == 0
        calls.append([script for script, _ in flaky.calls])
    assert calls[0] == calls[1]


def test_a_full_worker_asks_at_most_once_in_20_ms_however_often_its_doorbell_rings(flaky):
    worker, _ = with_long_answers(flaky, 1)
    flaky.calls.clear()
    began_s = worker.clock.monotonic()
    while worker.clock.monotonic() < began_s + 1:
        worker.job_loop.contest()
        worker.job_loop.one_pass()
        worker.engine.step()
    assert 20 <= sum(script == "claim" for script, _ in flaky.calls) <= 51


def test_while_the_store_is_away_a_paused_job_continues_in_a_slot_that_is_freed(flaky):
    worker, loud, quiet = with_a_paused_job(flaky, 2)
    (paused,) = set(loud) - computing(worker)
    flaky.disconnected = True
    before = words(worker, paused)
    while worker.engine.free_capacity().slots == 0:
        worker.engine.step()
    for _ in range(20):
        with contextlib.suppress(StoreUnavailable):
            worker.job_loop.one_pass()
        worker.engine.step()
    assert computing(worker) == set(loud)
    assert words(worker, paused) > before
    flaky.disconnected = False
    worker.run_until(lambda: not is_paused(flaky, paused))
    assert paused in computing(worker)
    worker.run_until(worker.all_ended)
    for job_id in loud:
        check_answer(flaky, job_id, 400)
    check_answer(flaky, quiet, 60)


def test_a_claim_whose_answer_was_lost_takes_the_slot_in_which_a_paused_job_continued(flaky):
    worker, (loud,), quiet = with_a_paused_job(flaky, 1)
    green = admit_job(flaky, "green", max_tokens=60)
    while worker.engine.free_capacity().slots == 0:
        worker.engine.step()
    flaky.lose_answer_of = "claim"
    with pytest.raises(StoreUnavailable):
        worker.job_loop.one_pass()
    worker.engine.step()
    assert state_and_attempts(flaky, green) == (JobState.RUNNING, 1)
    assert computing(worker) == {loud}
    worker.job_loop.one_pass()
    worker.engine.step()
    assert computing(worker) == {green}
    assert worker.claimed_jobs.paused == 1
    assert is_paused(flaky, loud)
    worker.run_until(worker.all_ended)
    for job_id, length in ((loud, 400), (quiet, 60), (green, 60)):
        check_answer(flaky, job_id, length)


@pytest.mark.parametrize("lost_at", range(1, 8))
def test_an_exchange_whose_answer_is_lost_is_repeated_without_a_job_lost_or_run_twice(flaky, lost_at):
    worker = a_worker(flaky, 2)
    ids = {admit_job(flaky, tenant, max_tokens=n): n for tenant, n in (("a", 250), ("a", 260), ("b", 120), ("c", 80))}
    claims = 0
    while not worker.all_ended():
        with contextlib.suppress(StoreUnavailable):
            sent = sum(script == "claim" for script, _ in flaky.calls)
            if sent == lost_at - 1 and claims < lost_at:
                claims, flaky.lose_answer_of = lost_at, "claim"
            worker.job_loop.one_pass()
        worker.engine.step()
        assert len(worker.engine._running) <= 2
    for job_id, length in ids.items():
        check_answer(flaky, job_id, length)


@pytest.mark.parametrize("how", ["canceled", "expired"])
def test_a_paused_job_ends_at_once_if_it_is_canceled_or_late(flaky, how):
    worker, loud, quiet = with_a_paused_job(flaky, 1, deadline_ms=9_000)
    if how == "canceled":
        flaky.cancel(loud[0])
        worker.engine.cancel(worker.claimed_jobs.request_cancel(loud[0]))
    else:
        worker.clock.advance(9)
    worker.run_until(lambda: state_and_attempts(flaky, loud[0])[0].value == how)
    assert computing(worker) == {quiet}
    assert worker.claimed_jobs.paused == 0
    assert 30 <= flaky.touch(loud[0]).usage.completion_tokens < 400
    worker.run_until(worker.all_ended)
    check_answer(flaky, quiet, 60)


def test_a_paused_job_keeps_its_lease_and_is_dropped_if_it_loses_it(flaky):
    worker, loud, quiet = with_a_paused_job(flaky, 1)
    assert worker.heartbeat() == []
    flaky.release(WORKER, [worker.claimed_jobs.find(loud[0]).claimed.held])
    worker.job_loop.contest()
    worker.run_until(lambda: state_and_attempts(flaky, quiet)[0] is JobState.SUCCEEDED)
    worker.run_until(worker.all_ended)
    view = flaky.touch(loud[0])
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)
    assert view.text == "".join(f"w{3 + i} " for i in range(400))


@pytest.mark.parametrize("flag", ["closed", "paused"])
def test_a_worker_that_drains_gives_back_its_paused_job_with_all_its_tokens_and_runs_the_others(flaky, flag):
    worker, loud, quiet = with_a_paused_job(flaky, 2)
    behind = admit_job(flaky, "green", max_tokens=5)
    (paused,) = [job_id for job_id in loud if is_paused(flaky, job_id)]
    (other,) = set(loud) - {paused}
    generated = words(worker, paused)
    setattr(worker.claimer, flag, True)
    flaky.lose_answer_of = "release"
    worker.engine.recall()
    with pytest.raises(StoreUnavailable):
        worker.run_until(worker.all_ended)
    worker.run_until(lambda: worker.claimed_jobs.find(paused) is None)
    assert state_and_attempts(flaky, paused) == (JobState.QUEUED, 0)
    assert not is_paused(flaky, paused)
    assert flaky.client.hget(keys.rq_job(paused), "penstock_kept_tokens") == str(generated).encode()
    shown = flaky.read_events({paused: "0"}, block_ms=1)[paused]
    assert "".join(fields.get("text", "") for _, fields in shown) == "".join(f"w{3 + i} " for i in range(generated))
    worker.run_until(lambda: not len(worker.claimed_jobs))
    check_answer(flaky, other, 400)
    check_answer(flaky, quiet, 60)
    assert state_and_attempts(flaky, behind) == (JobState.QUEUED, 0)
    # Its computed tokens are counted once: the next worker counts the tokens that it starts from as its own.
    assert flaky.client.hget(keys.stats(), "wasted|loud|retried") is None
    flaky.cancel(behind)
    flaky.cancel(paused)


def test_a_job_keeps_its_slot_until_the_one_that_takes_it_has_been_prepared(flaky, monkeypatch):
    worker, loud = with_long_answers(flaky, 1)
    ready = []
    starts = worker.claimer.starts
    monkeypatch.setattr("workers.duties.claims.job_starter._is_quick", lambda _payload: False)
    monkeypatch.setattr(starts.preparation, "finished", lambda: [ready.pop()] if len(ready) == 2 else [])
    monkeypatch.setattr(starts.preparation, "add", lambda job, spec: ready.append((job, spec)))
    admit_job(flaky, "quiet", max_tokens=10)
    worker.job_loop.contest()
    worker.run_until(lambda: ready)
    before = words(worker, loud[0])
    assert is_paused(flaky, loud[0])
    for _ in range(100):
        worker.job_loop.one_pass()
        worker.engine.step()
    assert words(worker, loud[0]) >= before + 90
    monkeypatch.undo()
    starts._prepare(ready[0][0])
    worker.engine.step()
    assert loud[0] not in computing(worker)
    assert len(computing(worker)) == 1
    worker.run_until(worker.all_ended)
    check_answer(flaky, loud[0], 400)


def test_a_job_whose_successor_cannot_be_prepared_continues(flaky):
    worker, loud = with_long_answers(flaky, 1)
    broken = admit_job(flaky, "quiet", max_tokens=10, payload={"prompt": "a b c", "temperature": "hot"})
    worker.job_loop.contest()
    worker.run_until(lambda: state_and_attempts(flaky, broken)[0] is JobState.FAILED)
    worker.run_until(lambda: not is_paused(flaky, loud[0]))
    assert worker.engine.stats.pauses == 0
    worker.run_until(worker.all_ended)
    check_answer(flaky, loud[0], 400)


def test_ten_tenants_rotate_through_one_slot_and_none_waits_for_the_longest_answer(flaky):
    worker = a_worker(flaky, 1)
    long = admit_job(flaky, "loud", max_tokens=600)
    worker.run_until(lambda: worker.engine.stats.completion_tokens >= 50)
    ids = {admit_job(flaky, f"t{i}", max_tokens=20 + i): 20 + i for i in range(9)}
    worker.job_loop.contest()
    worker.run_until(lambda: all(state_and_attempts(flaky, job)[0] is JobState.SUCCEEDED for job in ids))
    assert words(worker, long) < 400
    worker.run_until(worker.all_ended)
    for job_id, length in (ids | {long: 600}).items():
        check_answer(flaky, job_id, length)
