"""Tests of how a worker stops on a signal or an operator's drain (faults 11 and 12)."""

import os
import signal
import time

import pytest

from shared.accounts.workers import DrainProgress, Workers
from shared.jobs.outcomes import Refusal
from shared.jobs.states import JobState
from shared.store import keys
from shared.store.connection import WORKER
from tests.support.builders import a_job, refused
from tests.support.processes import in_time, wait_for
from workers.exit_codes import ExitCode
from workers.supervisor import _SAME_REQUEST_S


def start_drain(worker):
    """Send one SIGTERM. Return when the worker has logged that it drains."""
    worker.terminate()
    wait_for(lambda: worker.log_lines("worker.draining"), "the drain to begin")


def test_a_draining_worker_finishes_its_running_jobs_and_claims_no_more(stage):
    worker = stage.worker()
    # The first eight last for four seconds.
    ids = [stage.admit("abcdefgh"[i % 8], max_tokens=400 if i < 8 else 20) for i in range(12)]
    stage.wait_until_computing(*ids[:8])
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    views = stage.jobs(ids)
    assert [view.state for view in views] == [JobState.SUCCEEDED] * 8 + [JobState.QUEUED] * 4
    assert [view.attempts for view in views] == [1] * 8 + [0] * 4
    stage.worker()
    assert {view.attempts for view in stage.ended(*ids)} == {1}


def test_a_job_that_does_not_end_within_the_grace_time_is_released_and_counts_no_attempt(stage):
    worker = stage.worker(PENSTOCK_DRAIN_GRACE_MS="1000")
    ids = [stage.admit(tenant, max_tokens=2_000) for tenant in "abc"]
    stage.wait_until_computing(*ids)
    worker.terminate()
    # Its jobs would take twenty seconds.
    assert worker.exit_code(timeout_s=15) == ExitCode.DRAINED
    for view in stage.jobs(ids):
        assert (view.state, view.attempts) == (JobState.QUEUED, 0)
        assert view.position == 1
    stage.worker(PENSTOCK_SIM_DECODE_TPS="10000")
    for view in stage.ended(*ids):
        assert (view.state, view.attempts) == (JobState.SUCCEEDED, 1)


def test_without_a_grace_time_a_drain_releases_jobs_at_once(stage):
    worker = stage.worker(PENSTOCK_DRAIN_GRACE_MS="0")
    job_id = stage.admit(max_tokens=1_000)
    stage.wait_until_computing(job_id)
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    assert stage.job(job_id).state is JobState.QUEUED
    stage.store.cancel(job_id)


def test_a_second_signal_ends_the_worker_at_once_and_its_leases_end_later(stage):
    worker = stage.worker()
    job_id = stage.admit(max_tokens=1_000)
    stage.wait_until_computing(job_id)
    start_drain(worker)
    # The signal is repeated until it no longer counts as a duplicate of the first one.
    wait_for(lambda: worker.terminate() or not worker.alive, "the worker to end")
    assert worker.exit_code() == ExitCode.FORCED
    stage.worker(PENSTOCK_SIM_DECODE_TPS="1000")
    (view,) = stage.ended(job_id)
    assert (view.state, view.attempts) == (JobState.SUCCEEDED, 2)


def test_a_ctrl_c_that_arrives_from_the_terminal_and_from_the_parent_counts_as_one_signal(stage):
    # This is repeated because two signals at once can reach a process with many threads in different orders.
    for _ in range(3):
        worker = stage.worker()
        job_id = stage.admit(max_tokens=20)
        stage.wait_until_computing(job_id)
        os.kill(worker.pid, signal.SIGINT)
        worker.terminate()
        assert worker.exit_code() == ExitCode.DRAINED
        assert stage.job(job_id).state is JobState.SUCCEEDED


def test_a_second_sigterm_just_after_the_first_does_not_end_the_drain_early(stage):
    def attempt():
        worker = stage.worker()
        job_id = stage.admit(max_tokens=100)
        stage.wait_until_computing(job_id)
        began_s = time.monotonic()
        start_drain(worker)
        worker.terminate()
        took_s = time.monotonic() - began_s
        code = worker.exit_code()
        stage.store.cancel(job_id)
        # A second signal that comes later is another one.
        if took_s < _SAME_REQUEST_S / 2:
            assert code == ExitCode.DRAINED
            assert stage.job(job_id).state is JobState.SUCCEEDED
        return [(took_s, _SAME_REQUEST_S / 2)]

    in_time(attempt)


def test_signals_that_arrive_while_an_idle_worker_stops_do_not_change_its_exit_code(stage):
    for _ in range(3):
        worker = stage.worker()
        # The first signal ends the drain of an idle worker at once; the others meet the rest of its shutdown.
        wait_for(lambda worker=worker: worker.terminate() or not worker.alive, "the worker to end")
        assert worker.exit_code() == ExitCode.DRAINED


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_signaled_before_it_serves_exits_at_once_and_logs_the_reason(stage, signal_number):
    os.kill(stage.embedded.pid, signal.SIGKILL)
    wait_for(lambda: not stage.embedded.alive(), "the store to die")
    worker = stage.worker(wait=False)
    wait_for(lambda: worker.log_lines("store.awaited"), "the worker to log that it waits for the store")
    os.kill(worker.pid, signal_number)
    assert worker.exit_code() == ExitCode.DRAINED
    assert worker.log_lines(f"{signal_number.name} before it served")
    assert not worker.log_lines("Traceback")
    stage.embedded.revive()


def test_an_operators_drain_stops_claims_and_admissions_until_it_is_revoked(stage):
    worker = stage.worker()
    # They leave too few KV cells for the next one.
    ids = [stage.admit(tenant, max_tokens=5_400) for tenant in "abc"]
    stage.wait_until_computing(*ids)
    queued_id = stage.admit(max_tokens=300)
    name = stage.view(worker).name
    workers = Workers(stage.client)
    workers.drain(name)
    wait_for(lambda: stage.view(worker).draining, "the worker to report that it drains")
    for job_id in ids:
        stage.store.cancel(job_id)
    wait_for(lambda: {view.state for view in stage.jobs(ids)} == {JobState.CANCELED}, "the running jobs to end")
    last_beat_ms = stage.client.hget(keys.worker(name), "beat_ms")
    wait_for(lambda: stage.client.hget(keys.worker(name), "beat_ms") != last_beat_ms, "another heartbeat")
    assert (stage.job(queued_id).state, stage.job(queued_id).attempts) == (JobState.QUEUED, 0)
    # The worker would not start it, so nothing is promised.
    assert refused(stage.store, a_job(model="sim")).reason is Refusal.DRAINING
    assert workers.resume(name)
    (view,) = stage.ended(queued_id)
    assert view.state is JobState.SUCCEEDED
    (view,) = stage.ended(stage.admit())
    assert view.state is JobState.SUCCEEDED
    assert worker.alive


def test_an_operators_drain_of_all_workers_is_finished_when_their_running_jobs_have_ended(stage):
    worker = stage.worker()
    ids = [stage.admit(tenant, max_tokens=5_000) for tenant in "abc"]
    stage.wait_until_computing(*ids)
    name, workers = stage.view(worker).name, Workers(stage.client)
    workers.drain_all()
    wait_for(lambda: workers.progress() == [DrainProgress(name, 3, claims_no_more=True)], "the worker to claim no more")
    for job_id in ids:
        stage.store.cancel(job_id)
    wait_for(lambda: workers.progress()[0].is_finished, "the drain to be finished")
    assert {view.state for view in stage.jobs(ids)} == {JobState.CANCELED}
    workers.resume_all()
    wait_for(lambda: not stage.view(worker).draining, "the worker to report that it claims again")
    (view,) = stage.ended(stage.admit())
    assert view.state is JobState.SUCCEEDED


@pytest.mark.rq
def test_a_worker_that_has_drained_is_no_longer_registered_in_rq(stage):
    worker = stage.worker()
    name = wait_for(lambda: stage.view(worker), "the worker").name
    wait_for(lambda: stage.client.sismember("rq:workers", f"rq:worker:{name}"), "RQ to know it")
    worker.terminate()
    assert worker.exit_code() == ExitCode.DRAINED
    assert stage.client.smembers("rq:workers") == set()


def test_an_idle_worker_whose_store_is_gone_stops_within_a_few_seconds(stage):
    """Its claim is never answered, and it runs no job."""
    worker = stage.worker()
    os.kill(stage.embedded.pid, signal.SIGKILL)
    wait_for(lambda: not stage.embedded.alive(), "the store to die")
    wait_for(lambda: any("job_loop" in line for line in worker.log_lines("store.away")), "a claim without an answer")
    worker.terminate()
    # The grace time of a worker with jobs is thirty seconds.
    assert worker.exit_code(timeout_s=15) == ExitCode.DRAINED
    stage.embedded.revive()


@pytest.mark.parametrize("has_job", [False, True])
def test_a_worker_whose_store_hangs_stops_within_its_grace_time_and_two_store_timeouts(stage, has_job):
    """The store accepts requests and never answers, so each call takes as long as the worker's timeout."""
    grace_s = 1
    worker = stage.worker(PENSTOCK_DRAIN_GRACE_MS=str(1_000 * grace_s))
    job_id = stage.admit(max_tokens=5_000) if has_job else ""
    if has_job:
        stage.wait_until_computing(job_id)
    os.kill(stage.embedded.pid, signal.SIGSTOP)
    try:
        sent_s = time.monotonic()
        worker.terminate()
        assert worker.exit_code(timeout_s=60) == ExitCode.DRAINED
        # Less than a third timeout for a busy machine.
        assert time.monotonic() - sent_s < grace_s + 2.9 * WORKER.answer_s
    finally:
        os.kill(stage.embedded.pid, signal.SIGCONT)
    if has_job:
        stage.worker(PENSTOCK_SIM_DECODE_TPS="10000")
        (view,) = stage.ended(job_id)
        assert view.state is JobState.SUCCEEDED
