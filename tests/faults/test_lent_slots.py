"""Tests of one worker that lends slots to the candidates of a job, in one thread, with a manual clock.

A slot generates one word in 10 ms. To the store, a job with candidates has one slot, however many it borrows.
"""

import pytest

from shared.candidates import read_candidates
from shared.jobs.states import JobState
from tests.support.builders import a_job, admitted
from tests.support.one_worker import FlakyStore, OneWorker, admit_job, make_worker, state_and_attempts

N, LENGTH = 8, 60


@pytest.fixture
def flaky(redis_client) -> FlakyStore:
    return FlakyStore(redis_client)


def with_candidates(flaky: FlakyStore, slots: int, **environ: str) -> tuple[OneWorker, str]:
    """Return a worker all of whose slots have candidates of one job."""
    settings = {"PENSTOCK_MAX_BATCH_SIZE": str(slots), "PENSTOCK_SIM_DECODE_TPS": "100", "PENSTOCK_PREEMPTION": "on"}
    worker = make_worker(flaky, **settings | environ)
    payload = {"prompt": "one two", "n": N}
    job = admitted(flaky, a_job("loud", model="sim", payload=payload, max_tokens=N * LENGTH, deadline_ms=60_000))
    worker.run_until(lambda: slots_of(worker, job) == slots)
    return worker, job


def slots_of(worker: OneWorker, job_id: str) -> int:
    return sum(sequence.key.id == job_id for sequence in worker.engine._running.values())


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_jobs_of_another_tenant_start_at_once_in_lent_slots_and_pause_nobody(flaky, slots):
    worker, many = with_candidates(flaky, slots)
    began_s = worker.clock.monotonic()
    quiet = [admit_job(flaky, "quiet", max_tokens=20) for _ in range(slots - 1)]
    worker.job_loop.look_for_work()
    worker.run_until(lambda: all(slots_of(worker, job) == 1 for job in quiet))
    assert worker.clock.monotonic() - began_s < 0.1
    assert slots_of(worker, many) == 1
    assert flaky.client.hget(f"rq:job:{many}", "penstock_paused_since_ms") is None
    worker.run_until(worker.all_ended)
    assert [state_and_attempts(flaky, job) for job in [many, *quiet]] == [(JobState.SUCCEEDED, 1)] * slots
    candidates = read_candidates(flaky.touch(many, quiet=True).text, N)
    assert [len(candidate.text.split()) for candidate in candidates] == [LENGTH] * N


def test_a_tenant_that_wants_the_only_slot_gets_it_by_turns_as_from_any_job(flaky):
    worker, many = with_candidates(flaky, 1)
    quiet = admit_job(flaky, "quiet", max_tokens=10)
    worker.job_loop.contest()
    worker.run_until(lambda: state_and_attempts(flaky, quiet)[0] is JobState.SUCCEEDED)
    assert state_and_attempts(flaky, many)[0] is JobState.RUNNING
    worker.run_until(worker.all_ended)
    candidates = read_candidates(flaky.touch(many, quiet=True).text, N)
    assert [len(candidate.text.split()) for candidate in candidates] == [LENGTH] * N


def test_a_job_that_borrows_slots_has_the_usage_of_its_answers(flaky):
    worker, many = with_candidates(flaky, 8)
    worker.run_until(worker.all_ended)
    usage = flaky.touch(many, quiet=True).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (2, N * LENGTH, 0)
    # Side by side, the answers take little longer than one.
    assert usage.decode_ms < 2 * LENGTH * 10
