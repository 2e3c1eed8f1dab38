"""Tests of prefetch: a worker claims a job for a slot that is about to become free, at most one for eight slots."""

import threading

import pytest

from shared.jobs.states import JobState
from shared.settings.settings import load
from tests.faults.test_pauses import check_answer, computing, with_a_paused_job
from tests.support.one_worker import MODEL, WORKER, FlakyStore, OneWorker, admit_job, make_worker, state_and_attempts
from tests.support.processes import wait_for
from workers.duties.heartbeat import Heartbeat
from workers.duty import MAX_FAULTS
from workers.engine.events import Ended
from workers.engine.sequence import SequenceState
from workers.exit_codes import ExitCode
from workers.pools.served_pool import ServedPool
from workers.supervisor import Supervisor

SLOTS = 8


@pytest.fixture
def flaky(redis_client) -> FlakyStore:
    return FlakyStore(redis_client)


def make_full_worker(flaky: FlakyStore, queued: int) -> tuple[OneWorker, list[str]]:
    """Return a worker with jobs in all slots, one of 5 tokens and the others of 40, and the ids of `queued` jobs."""
    worker = make_worker(flaky, PENSTOCK_MAX_BATCH_SIZE=str(SLOTS), PENSTOCK_SIM_PREFILL_TPS="1e9")
    for i in range(SLOTS):
        admit_job(flaky, f"t{i}", max_tokens=5 if i == 0 else 40)
    worker.run_until(lambda: len(worker.claimed_jobs) == SLOTS)
    return worker, [admit_job(flaky, "behind", max_tokens=3) for _ in range(queued)]


def run_until_prefetched(worker: OneWorker) -> None:
    worker.run_until(lambda: len(worker.claimed_jobs) > SLOTS)


def run_to_end(worker: OneWorker) -> int:
    """Run until all jobs have ended. Return the largest number of jobs that the worker held at once."""
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, len(worker.claimed_jobs))
        return worker.all_ended()

    worker.run_until(ended)
    return most


def test_one_job_and_no_second_one_is_claimed_before_the_end_that_frees_its_slot(flaky):
    worker, queued_ids = make_full_worker(flaky, 3)
    run_until_prefetched(worker)
    assert worker.engine.stats.completion_tokens < SLOTS * 5
    assert flaky.snapshot(stats=True).stats.get("ended|succeeded", 0) == 0
    assert state_and_attempts(flaky, queued_ids[0]) == (JobState.RUNNING, 1)
    assert run_to_end(worker) == SLOTS + 1
    assert {state_and_attempts(flaky, job_id) for job_id in queued_ids} == {(JobState.SUCCEEDED, 1)}


def test_a_prefetched_job_gets_its_slot_in_the_step_after_the_end(flaky):
    worker, queued_ids = make_full_worker(flaky, 1)
    run_until_prefetched(worker)
    (prefetched,) = (entry.claim for entry in worker.claimed_jobs._by_id.values() if entry.claimed.id == queued_ids[0])
    while not any(isinstance(event, Ended) for event in worker.delivery._inbox):
        worker.engine.step()
        assert worker.engine._by_key[prefetched].sequences[0].state is SequenceState.WAITING
    worker.engine.step()
    assert worker.engine._by_key[prefetched].sequences[0].state is not SequenceState.WAITING
    worker.run_until(worker.all_ended)


def test_with_fewer_than_eight_slots_no_job_is_prefetched(flaky):
    worker = make_worker(flaky, PENSTOCK_MAX_BATCH_SIZE="7", PENSTOCK_SIM_PREFILL_TPS="1e9")
    for i in range(20):
        admit_job(flaky, f"t{i}", max_tokens=3 + i % 5)
    assert run_to_end(worker) == 7


def test_the_lease_of_a_prefetched_job_is_renewed(flaky):
    worker, queued_ids = make_full_worker(flaky, 1)
    run_until_prefetched(worker)
    assert queued_ids[0] in {held.id for held in worker.claimed_jobs.held()}
    assert worker.heartbeat() == []
    worker.run_until(worker.all_ended)


def test_a_drain_releases_a_prefetched_job_without_an_attempt_and_lets_the_others_end(flaky):
    worker, queued_ids = make_full_worker(flaky, 1)
    run_until_prefetched(worker)
    worker.claimer.closed = True
    worker.engine.recall()
    worker.run_until(lambda: not len(worker.claimed_jobs) and not worker.delivery.has_unsent)
    assert state_and_attempts(flaky, queued_ids[0]) == (JobState.QUEUED, 0)
    assert flaky.snapshot(stats=True).stats["ended|succeeded"] == SLOTS
    flaky.cancel(queued_ids[0])


def a_supervisor(worker: OneWorker) -> Supervisor:
    """Return a supervisor that can drain this worker. Its duties are not started; the test runs their passes."""
    loop = worker.job_loop
    heartbeat = Heartbeat(WORKER, [MODEL], loop.engine, loop.claimed_jobs, loop.throughput, lambda: 0)
    return Supervisor(
        load(environ={"PENSTOCK_ENGINE": "sim"}, dotenv=None),
        worker.store,
        [ServedPool(loop, heartbeat)],
        clock=worker.clock,
    )


def test_only_duties_on_which_the_workers_own_jobs_depend_can_end_the_process(flaky):
    supervisor = a_supervisor(make_worker(flaky))
    for duty in supervisor._duties:
        duty.work.one_pass = lambda: 1 / 0
        for _ in range(MAX_FAULTS):
            duty.guarded_pass()
    names = {duty.work.name for duty in supervisor._duties if duty._stopping.is_set()}
    assert names == {"leases", "job_loop", "doorbell", "watchdog"}


def test_a_worker_that_stops_after_a_fault_claims_nothing_while_its_duties_end(flaky, monkeypatch):
    worker = make_worker(flaky)
    supervisor = a_supervisor(worker)
    for duty in supervisor._duties:
        monkeypatch.setattr(duty, "stop", lambda _timeout_s: True)  # their threads were not started
    monkeypatch.setattr(supervisor, "_engine_thread", threading.Thread(target=int))
    supervisor._engine_thread.start()
    # The store may be away for the last calls.
    monkeypatch.setattr(supervisor, "_call_store", lambda _call: None)
    supervisor._stop()
    job_id = admit_job(flaky)
    worker.job_loop.claim_now()
    assert state_and_attempts(flaky, job_id) == (JobState.QUEUED, 0)
    flaky.cancel(job_id)


def test_an_operators_drain_releases_a_prefetched_job(flaky):
    worker, queued_ids = make_full_worker(flaky, 1)
    run_until_prefetched(worker)
    worker.claimer.paused = True
    supervisor = a_supervisor(worker)
    supervisor._set_paused(supervisor._pools[0], paused=False)
    supervisor._set_paused(supervisor._pools[0], paused=True)
    worker.run_until(lambda: len(worker.claimed_jobs) < SLOTS and not worker.delivery.has_unsent)
    assert state_and_attempts(flaky, queued_ids[0]) == (JobState.QUEUED, 0)
    flaky.cancel(queued_ids[0])
    worker.run_until(worker.all_ended)


def test_a_job_that_is_prefetched_after_the_drain_began_is_released(flaky):
    """Its claim was already sent when the drain began."""
    worker, queued_ids = make_full_worker(flaky, 1)
    supervisor = a_supervisor(worker)
    drain = threading.Thread(target=supervisor._drain, args=("SIGTERM",))
    drain.start()
    wait_for(lambda: worker.claimer.closed, "the drain to begin")
    worker.claimer.closed = False
    run_until_prefetched(worker)
    worker.claimer.closed = True
    wait_for(lambda: worker.engine._inbox._pending, "the drain to recall jobs without a slot")
    worker.run_until(lambda: not len(worker.claimed_jobs) and not worker.delivery.has_unsent)
    drain.join(10)
    assert not drain.is_alive()
    assert state_and_attempts(flaky, queued_ids[0]) == (JobState.QUEUED, 0)
    flaky.cancel(queued_ids[0])


def test_a_duty_that_fails_while_a_drain_reports_its_last_tokens_sets_the_exit_code(flaky):
    worker, _ = make_full_worker(flaky, 0)
    supervisor = a_supervisor(worker)
    report = threading.Thread(target=supervisor._report_computed_tokens)
    report.start()
    supervisor._duty_failed("doorbell")
    wait_for(worker.job_loop.wake.is_set, "the report to begin")
    worker.run_until(worker.all_ended)
    report.join(10)
    assert not report.is_alive()
    supervisor._check_late_faults()
    assert supervisor._exit is ExitCode.DUTY


def test_a_prefetched_job_that_is_canceled_never_begins(flaky):
    worker, queued_ids = make_full_worker(flaky, 1)
    run_until_prefetched(worker)
    flaky.cancel(queued_ids[0])
    worker.engine.cancel(worker.claimed_jobs.request_cancel(queued_ids[0]))
    worker.run_until(lambda: state_and_attempts(flaky, queued_ids[0]) == (JobState.CANCELED, 1))
    assert flaky.touch(queued_ids[0]).usage.completion_tokens == 0
    worker.run_until(worker.all_ended)


@pytest.mark.parametrize(("late_steps", "counted"), [(0, 0), (4, 4), (10, 10)])
def test_steps_with_a_free_slot_count_as_idle_from_5_ms_after_the_end_that_freed_it(flaky, late_steps, counted):
    """With two slots there is no prefetch. A step takes 10 ms."""
    worker = make_worker(flaky, PENSTOCK_MAX_BATCH_SIZE="2", PENSTOCK_SIM_PREFILL_TPS="1e9")
    for length in (3, 100, 3):
        admit_job(flaky, max_tokens=length)
    worker.run_until(lambda: len(worker.claimed_jobs) == 2)
    while worker.engine.free_capacity().slots == 0:
        worker.engine.step()
    before_s = worker.clock.monotonic()
    for _ in range(late_steps):
        worker.engine.step()
    assert worker.clock.monotonic() - before_s == pytest.approx(late_steps * 0.01)
    worker.job_loop.one_pass()
    assert len(worker.claimed_jobs) == 2
    assert worker.claimer.idle_slot_steps == counted
    worker.run_until(worker.all_ended)


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_a_paused_job_continues_in_the_step_after_the_end_of_the_job_that_took_its_slot(flaky, slots):
    worker, loud, quiet = with_a_paused_job(flaky, slots)
    # The worker's thread claims while the engine's thread computes the last step.
    worker.engine.on_ending = worker.job_loop.one_pass
    while quiet in computing(worker):
        worker.job_loop.one_pass()
        worker.engine.step()
    worker.engine.step()
    assert computing(worker) == set(loud)
    worker.engine.on_ending = worker.job_loop.request_prefetch
    worker.run_until(worker.all_ended)
    for job_id in loud:
        check_answer(flaky, job_id, 400)
    check_answer(flaky, quiet, 60)
